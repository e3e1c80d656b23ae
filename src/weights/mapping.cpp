#include "weights/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace winnow::weights {
namespace {

void unmap(std::byte* data, int64_t bytes) { ::munmap(data, static_cast<size_t>(bytes)); }

}  // namespace

Result<device::Buffer> map(const File& file, const std::string& path) {
  void* p = ::mmap(nullptr, static_cast<size_t>(file.size()), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (p == MAP_FAILED) return error("{}: cannot be mapped: {}", path, std::strerror(errno));
  return device::Buffer(static_cast<std::byte*>(p), file.size(), unmap);
}

}  // namespace winnow::weights
