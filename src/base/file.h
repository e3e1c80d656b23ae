// A regular file opened for reading. Reads are positional, so several workers may read at once, and a file that shrinks
// or a disk that fails is an error instead of a signal.
#pragma once

#include <span>
#include <string>

#include "base/error.h"

namespace winnow {

class File {
 public:
  // Follows symbolic links; refuses directories, pipes and devices.
  static Result<File> open(const std::string& path);
  File(File&& o) noexcept : fd_(o.fd_), size_(o.size_), changed_ns_(o.changed_ns_) { o.fd_ = -1; }
  File& operator=(File&& o) noexcept;
  ~File();
  int64_t size() const { return size_; }
  int descriptor() const { return fd_; }
  // Fills `to` from `offset`: 0, or the system's error number; kFileTooShort at the end of the file.
  static constexpr int kFileTooShort = -1, kFileChanged = -3;
  int read(int64_t offset, std::span<std::byte> to) const;
  void will_need(int64_t offset, int64_t bytes) const;  // starts reading ahead
  // Size and time of the last change are those of open(): 0, kFileTooShort, kFileChanged, or the system's error number.
  int changed() const;

 private:
  File() = default;
  int fd_ = -1;
  int64_t size_ = 0, changed_ns_ = 0;
};

// The whole of a small file; more than `limit` bytes is an error.
Result<std::string> read_text(const std::string& path, int64_t limit);
std::string describe_read_error(int code);
bool exists(const std::string& path);  // of any kind; a dangling link is there too

}  // namespace winnow
