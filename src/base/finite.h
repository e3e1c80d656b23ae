// Whether values are numbers: weights while they are loaded, the rows of a step before anybody sees them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace winnow {

// n values of a float type, wherever they lie: none is NaN or infinite. True for any other type.
bool all_finite(DType type, const std::byte* v, int64_t n);

}  // namespace winnow
