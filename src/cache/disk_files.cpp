#include "cache/disk_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace winnow::cache {
namespace {

constexpr mode_t kFileMode = 0600, kFolderMode = 0700;  // what is in them was somebody's prompt

int result(int r) { return r == 0 ? 0 : errno; }

int open_file(const std::string& path, int flags, int* file) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, kFileMode);
  if (fd < 0) return errno;
  *file = fd;
  return 0;
}

int make_folder(const std::string& path) {
  const int e = result(::mkdir(path.c_str(), kFolderMode));
  return e == EEXIST ? 0 : e;
}

int list(const std::string& path, std::vector<DiskFiles::Listed>* to) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (!dir) return errno;
  for (;;) {
    errno = 0;
    const dirent* e = ::readdir(dir.get());
    if (!e) return errno;
    const std::string name = e->d_name;
    struct stat s{};
    if (name == "." || name == ".." || ::fstatat(::dirfd(dir.get()), e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode)) to->push_back({name, S_ISDIR(s.st_mode), s.st_size, s.st_mtim.tv_sec});
  }
}

int append(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

int read_part(int file, int64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = ::pread(file, to.data(), to.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return DiskFiles::kTooShort;
    to = to.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return 0;
}

int read(const std::string& path, std::span<const std::span<std::byte>> parts) {
  int file = -1;
  if (const int e = open_file(path, O_RDONLY, &file)) return e;
  int64_t offset = 0;
  int e = 0;
  for (auto part = parts.begin(); part != parts.end() && e == 0; ++part) {
    e = read_part(file, offset, *part);
    offset += static_cast<int64_t>(part->size());
  }
  ::close(file);
  return e;
}

int lock(const std::string& path, int* held) {
  int file = -1;
  if (const int e = open_file(path, O_RDWR | O_CREAT, &file)) return e;
  const int e = result(::flock(file, LOCK_EX | LOCK_NB));
  if (e) ::close(file);
  if (!e) *held = file;
  return e;
}

}  // namespace

DiskFiles real_files() {
  return {.make_folder = make_folder,
          .list = list,
          .create = [](const std::string& path, int* file) { return open_file(path, O_WRONLY | O_CREAT | O_TRUNC, file); },
          .append = append,
          .close = [](int file) { return result(::close(file)); },
          .rename = [](const std::string& from, const std::string& to) { return result(::rename(from.c_str(), to.c_str())); },
          .remove = [](const std::string& path) { return result(::unlink(path.c_str())); },
          .read = read,
          .touch = [](const std::string& path) { return result(::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW)); },
          .lock = lock};
}

std::string describe_file_error(int code) { return code == DiskFiles::kTooShort ? "the file is too short" : std::strerror(code); }

}  // namespace winnow::cache
