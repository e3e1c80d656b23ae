#include "ops/mla/mla.h"

namespace winnow::ops {

List<SparseMla> kernels(SparseMla, Cpu) { return {}; }

}  // namespace winnow::ops
