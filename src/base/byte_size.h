// Sizes as people write them: "8GB", "512MiB", "1.5GB", "65536". kB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB
// powers of 1024; without a unit it is bytes. Letters may be small. "8G" is refused, because it is read both ways.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace winnow {

// From 0 to 2^63 - 1, a fraction of a byte cut off. The Error does not name where the text stood; its caller does.
Result<int64_t> parse_byte_size(std::string_view text);

}  // namespace winnow
