#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace winnow {
namespace {

int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec; }

}  // namespace

Result<File> File::open(const std::string& path) {
  File f;
  // O_NONBLOCK: opening a pipe must not wait for a writer; it means nothing for regular files.
  f.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (f.fd_ < 0) return error("{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat s{};
  if (::fstat(f.fd_, &s) != 0) return error("{}: {}", path, std::strerror(errno));
  if (!S_ISREG(s.st_mode)) return error("{}: is {}, not a file", path, S_ISDIR(s.st_mode) ? "a directory" : "a pipe or device");
  f.size_ = s.st_size;
  f.changed_ns_ = nanoseconds(s.st_mtim);
  return f;
}

File& File::operator=(File&& o) noexcept {
  std::swap(fd_, o.fd_);
  std::swap(size_, o.size_);
  std::swap(changed_ns_, o.changed_ns_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

int File::read(int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_, to.data(), to.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return kFileTooShort;
    to = to.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return 0;
}

void File::will_need(int64_t offset, int64_t bytes) const { ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED); }

int File::changed() const {
  struct stat s{};
  if (::fstat(fd_, &s) != 0) return errno;
  if (s.st_size < size_) return kFileTooShort;
  return s.st_size == size_ && nanoseconds(s.st_mtim) == changed_ns_ ? 0 : kFileChanged;
}

std::string describe_read_error(int code) {
  if (code == File::kFileTooShort) return "the file became shorter";
  if (code == File::kFileChanged) return "the file was changed after it was opened; start again when it is complete";
  return std::strerror(code);
}

Result<std::string> read_text(const std::string& path, int64_t limit) {
  auto f = File::open(path);
  if (!f) return f.error();
  if (f->size() > limit) return error("{}: has {} bytes; more than {} are not read", path, f->size(), limit);
  std::string text(static_cast<size_t>(f->size()), '\0');
  if (const int e = f->read(0, std::as_writable_bytes(std::span(text)))) return error("{}: {}", path, describe_read_error(e));
  return text;
}

bool exists(const std::string& path) {
  struct stat s{};
  return ::lstat(path.c_str(), &s) == 0;
}

}  // namespace winnow
