#include <xxhash.h>

#include <algorithm>

#include "base/file.h"
#include "weights/checkpoint.h"

namespace winnow::weights {
namespace {

constexpr int64_t kWhole = 1 << 20;                   // tensors up to this size are read whole
constexpr int64_t kSamples = 8, kSampleBytes = 4096;  // of larger ones
constexpr int64_t kMostConfigBytes = 64 << 20;        // it was read before, under a lower limit

class Hash {
 public:
  Hash() : state_(XXH3_createState()) { check(state_ && XXH3_128bits_reset(state_) == XXH_OK, "no memory for a hash"); }
  ~Hash() { XXH3_freeState(state_); }
  Hash(const Hash&) = delete;
  void add(const void* data, size_t bytes) { XXH3_128bits_update(state_, data, bytes); }
  void add(uint64_t n) { add(&n, sizeof n); }
  void add(std::string_view text) {  // with its length, so that the next text cannot pass for its end
    add(text.size());
    add(text.data(), text.size());
  }
  std::string text() const {
    const XXH128_hash_t h = XXH3_128bits_digest(state_);
    return fmt::format("{:016x}{:016x}", h.high64, h.low64);
  }

 private:
  XXH3_state_t* state_;
};

void add_file(Hash& hash, const SafetensorsFile& f) {
  const int64_t size = f.file().size();
  hash.add(std::string_view(f.path()).substr(f.path().rfind('/') + 1));
  hash.add(static_cast<uint64_t>(size));
  std::string bytes;
  const auto add = [&](int64_t offset, int64_t count) {
    bytes.resize(static_cast<size_t>(count));
    if (const int e = f.file().read(offset, std::as_writable_bytes(std::span(bytes)))) throw error("{}: {}", f.path(), describe_read_error(e));
    hash.add(std::string_view(bytes));
  };
  const int64_t header = f.header_bytes();
  add(0, header);
  for (const auto& [name, t] : f.tensors()) {
    const int64_t begin = header + t.offset;
    if (t.bytes <= kWhole) {
      add(begin, t.bytes);
      continue;
    }
    const int64_t room = t.bytes - kSampleBytes;
    for (int64_t i = 0; i < kSamples; ++i) add(begin + room / (kSamples - 1) * i + room % (kSamples - 1) * i / (kSamples - 1), kSampleBytes);
  }
}

}  // namespace

std::string Checkpoint::identity() const {
  Hash hash;
  hash.add(std::string_view(read_text(dir_ + "/config.json", kMostConfigBytes).or_throw()));
  hash.add(files_.size());
  for (const SafetensorsFile& f : files_) add_file(hash, f);
  return hash.text();
}

}  // namespace winnow::weights
