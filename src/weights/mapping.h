// A whole file as memory, read-only and shared with the page cache. It is read without a copy, but a file that shrinks, or a
// disk that fails, is SIGBUS there.
#pragma once

#include "base/file.h"
#include "device/device.h"

namespace winnow::weights {

// Outlives the file object. An error begins with `path`.
Result<device::Buffer> map(const File& file, const std::string& path);

}  // namespace winnow::weights
