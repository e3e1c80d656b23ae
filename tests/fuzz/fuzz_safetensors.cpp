// The header of a safetensors file: any text, any size of the data behind it. What is accepted must keep the promises
// that loading relies on: every tensor inside the data, as long as its shape says, none over another.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace winnow;
  uint16_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  const std::string_view text(reinterpret_cast<const char*>(data) + sizeof data_bytes, size - sizeof data_bytes);
  const auto tensors = weights::parse_header(text, data_bytes, "header");
  if (!tensors) {
    for (const char* c = tensors.error().what(); *c; ++c)
      if (*c == '\n') std::abort();  // one line
    return 0;
  }
  std::vector<uint8_t> covered(data_bytes, 0);
  for (const auto& [name, t] : *tensors) {
    int64_t elements = 1;
    for (int64_t d : t.shape) elements *= d;
    if (t.offset < 0 || t.bytes < 0 || t.offset + t.bytes > data_bytes || bytes_of(t.dtype, elements) != t.bytes) std::abort();
    for (int64_t i = t.offset; i < t.offset + t.bytes; ++i)
      if (covered[static_cast<size_t>(i)]++) std::abort();
  }
  for (uint8_t c : covered)
    if (!c) std::abort();
  return 0;
}
