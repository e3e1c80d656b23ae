// For tests of the disk tier: a folder, records of a tree of prefixes, and faults between the tier and its files.
#pragma once

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cache/disk_tier.h"

namespace winnow::cache::testing {

using Bytes = std::vector<std::byte>;
using Tokens = std::vector<int32_t>;

// A folder that is not there yet, for one test; in memory if the system has such a place, for tests of thousands of files.
class Folder {
 public:
  explicit Folder(bool in_memory = false) {
    static std::atomic<int> number{0};
    const bool shm = in_memory && ::access("/dev/shm", W_OK | X_OK) == 0;
    path_ = fmt::format("{}winnow_disk_{}_{}", shm ? "/dev/shm/" : ::testing::TempDir(), ::getpid(), number++);
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  const std::string& path() const { return path_; }
  // All files, by name below the folder, but the lock.
  std::map<std::string, Bytes> files() const {
    std::map<std::string, Bytes> all;
    for (const auto& e : std::filesystem::recursive_directory_iterator(path_))
      if (e.is_regular_file() && e.path().filename() != "lock") all[std::filesystem::relative(e.path(), path_)] = get(e.path());
    return all;
  }
  static Bytes get(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  void put(const std::string& name, std::span<const std::byte> bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + "/" + name).parent_path());
    std::ofstream(path_ + "/" + name, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
  }
  void set_age(const std::string& name, int64_t seconds) const {
    std::filesystem::last_write_time(path_ + "/" + name, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }

 private:
  std::string path_;
};

inline DiskOptions options(const Folder& folder) {
  return {.folder = folder.path(),
          .limit_bytes = 1 << 20,
          .page_bytes = 100,
          .snapshot_bytes = 300,
          .page_tokens = 4,
          .queue_bytes = 1 << 20,
          .fingerprint = {1, 2}};
}

// The key of whole pages of tokens.
inline PrefixKey key_of(const Tokens& tokens) { return tokens.empty() ? PrefixKey{} : hash_of(std::as_bytes(std::span(tokens))); }

inline DiskRecord record(RecordKind kind, const Tokens& path, int64_t page_tokens = 4) {
  const auto size = static_cast<int64_t>(path.size());
  return {.kind = kind,
          .key = key_of(path),
          .parent = key_of(Tokens(path.begin(), path.end() - page_tokens)),
          .salt = 77,
          .depth = size / page_tokens,
          .folded = TokenPos(kind == RecordKind::page ? 0 : size),
          .tokens = Tokens(path.end() - page_tokens, path.end())};
}

// Bytes that tell which write they are of.
inline Bytes payload(int64_t bytes, uint32_t number) {
  Bytes b(static_cast<size_t>(bytes));
  uint64_t x = number * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& v : b) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<std::byte>(x >> 56);
  }
  return b;
}

// Waits for the result of a read; other results are lost.
inline DiskTier::Done wait_for(DiskTier& tier, uint64_t ticket) {
  tier.flush();
  DiskTier::Done done;
  while (tier.poll(&done))
    if (done.ticket == ticket) return done;
  ADD_FAILURE() << "a read without a result";
  return {};
}
inline DiskTier::Done read(DiskTier& tier, RecordKind kind, PrefixKey key) { return wait_for(tier, tier.read(kind, key)); }

// What is asked for may be changed while the tier runs, but `before`.
struct DiskFaults {
  std::atomic<int64_t> operations{0};           // so far, without closing
  std::atomic<int64_t> killed_at{INT64_MAX};    // the operation in which the process dies: of what it appends half is written, later ones do nothing
  std::atomic<int64_t> space_bytes{INT64_MAX};  // left on the disk
  std::atomic<bool> lies_about_appends{false};  // writes half and says it was all
  std::atomic<bool> reads_fail{false};          // EIO
  std::atomic<bool> removals_fail{false};       // EROFS
  std::function<void(const std::string&)> before;  // each operation, with "create NAME", "append", ...; runs in the tier's thread

  // The operations, by name, without folders.
  std::vector<std::string> log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  DiskFiles files() {
    const DiskFiles real = real_files();
    DiskFiles f = real;
    f.make_folder = [=, this](const std::string& path) { return begin("make_folder", path) ? real.make_folder(path) : EIO; };
    f.list = [=, this](const std::string& path, auto* to) { return begin("list", path) ? real.list(path, to) : EIO; };
    f.create = [=, this](const std::string& path, int* file) { return begin("create", path) ? real.create(path, file) : EIO; };
    f.append = [=, this](int file, std::span<const std::byte> bytes) { return append(real, file, bytes); };
    f.rename = [=, this](const std::string& from, const std::string& to) { return begin("rename", to) ? real.rename(from, to) : EIO; };
    f.remove = [=, this](const std::string& path) { return !begin("remove", path) ? EIO : removals_fail ? EROFS : real.remove(path); };
    f.read = [=, this](const std::string& path, auto parts) { return !begin("read", path) || reads_fail ? EIO : real.read(path, parts); };
    f.touch = [=, this](const std::string& path) { return begin("touch", path) ? real.touch(path) : EIO; };
    f.lock = [=, this](const std::string& path, int* held) { return begin("lock", path) ? real.lock(path, held) : EIO; };
    return f;  // close() as it is: the system closes the files of a process that dies
  }

 private:
  bool begin(const std::string& what, const std::string& path) {
    const std::string line = what + " " + path.substr(path.rfind('/') + 1);
    if (before) before(line);
    const std::lock_guard lock(mutex_);
    log_.push_back(line);
    return operations++ < killed_at;
  }
  int append(const DiskFiles& real, int file, std::span<const std::byte> bytes) {
    if (!begin("append", "")) {
      if (operations == killed_at + 1) real.append(file, bytes.first(bytes.size() / 2));
      return EIO;
    }
    if (lies_about_appends) return real.append(file, bytes.first(bytes.size() / 2));
    const auto size = static_cast<int64_t>(bytes.size());
    if (size > space_bytes) {
      real.append(file, bytes.first(static_cast<size_t>(space_bytes)));
      return ENOSPC;
    }
    space_bytes -= size;
    return real.append(file, bytes);
  }

  std::mutex mutex_;
  std::vector<std::string> log_;
};

}  // namespace winnow::cache::testing
