// The file operations that the disk tier is made of, so that tests can put faults between any two of them.
// Each returns 0 or the system's error number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace winnow::cache {

struct DiskFiles {
  struct Listed {
    std::string name;
    bool folder = false;
    int64_t bytes = 0, changed_s = 0;
  };
  using Path = const std::string&;

  std::function<int(Path)> make_folder;  // for its owner only; one that is there stays as it is
  // Files and folders of a folder; links, pipes and devices are left out.
  std::function<int(Path, std::vector<Listed>*)> list;
  std::function<int(Path, int* file)> create;  // empty, for its owner only, in place of what has the name
  std::function<int(int file, std::span<const std::byte>)> append;
  std::function<int(int file)> close;
  std::function<int(Path from, Path to)> rename;  // at once, in place of what has the name
  std::function<int(Path)> remove;
  // Fills the parts, one behind the other, from the start of a file. kTooShort if it ends before they are full.
  static constexpr int kTooShort = -1;
  std::function<int(Path, std::span<const std::span<std::byte>>)> read;
  std::function<int(Path)> touch;  // sets the time of change to now
  // Makes a file and locks it until *held is closed. EWOULDBLOCK: somebody else has it, in this process or another.
  std::function<int(Path, int* held)> lock;
};

DiskFiles real_files();
std::string describe_file_error(int code);

}  // namespace winnow::cache
