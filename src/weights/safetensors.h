// Safetensors files (github.com/huggingface/safetensors, README "Format"): an 8-byte little-endian header length, a JSON
// header, then the data. Files are mapped, every header field is checked before it is used, and nothing is allocated
// by a number from the file before that number is checked.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/view.h"
#include "device/device.h"

namespace winnow::weights {

struct TensorInfo {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;     // any rank: vision convolutions have five dimensions
  int64_t offset = 0, bytes = 0;  // inside the file's data section
};

// The header of one file, checked: sizes against shapes and types, ranges against the file, alignment, overlaps and holes.
// `data_bytes`: size of the data section.
Result<std::map<std::string, TensorInfo, std::less<>>> parse_header(std::string_view json, int64_t data_bytes, std::string_view where);

// One mapped file.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  const std::string& path() const { return path_; }
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  std::span<const std::byte> data(const TensorInfo& t) const;  // mapped: a file that shrinks meanwhile kills the process
  // Position of a tensor in file(), whose reads fail with an error instead.
  int64_t position(const TensorInfo& t) const { return data_start_ + t.offset; }
  const File& file() const { return file_; }
  int64_t header_bytes() const { return data_start_; }  // its length field included
  ConstTensorView view(std::string_view name) const;    // rank <= 4; check()s that it exists

 private:
  explicit SafetensorsFile(File file) : file_(std::move(file)) {}
  std::string path_;
  File file_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  device::Buffer map_;
  int64_t data_start_ = 0;
};

// Whether write_safetensors could write there now; Error (usage) if not. Leaves nothing behind.
void check_writable(const std::string& path);

// Writes one file: name -> view (packed, host memory). Throws Error on an I/O failure; writes to a temporary name, then renames.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, ConstTensorView>>& tensors);

}  // namespace winnow::weights
