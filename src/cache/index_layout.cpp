#include "cache/index_layout.h"

#include <algorithm>
#include <cstring>

namespace winnow::cache {

void rearrange(IndexLayout from, ConstTensorView keys, IndexLayout to, TensorView to_keys) {
  check(keys.rank == 2 && to_keys.rank == 2 && keys.packed() && to_keys.packed() && keys.shape == to_keys.shape && keys.dtype == to_keys.dtype,
        "rearrange: the two pages differ");
  const int64_t rows = keys.shape[0], dim = keys.shape[1];
  if (from == to) {
    std::memcpy(to_keys.data, keys.data, static_cast<size_t>(keys.bytes()));
    return;
  }
  check(!index_layout_why_not(IndexLayout::shuffled, rows, dim), "rearrange: the page has no shuffled layout");
  const auto run = static_cast<size_t>(bytes_of(keys.dtype, kIndexTile));  // what stays together
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < dim; c += kIndexTile)
      std::memcpy(to_keys.data + bytes_of(keys.dtype, index_offset(to, r, c, dim)), keys.data + bytes_of(keys.dtype, index_offset(from, r, c, dim)),
                  run);
}

void rearrange_page(const KvSpec& spec, const KvLayout& layout, std::span<const std::byte> page, IndexLayout to, std::span<std::byte> to_page) {
  check(static_cast<int64_t>(page.size()) == layout.page_bytes && page.size() == to_page.size(), "rearrange_page: not a whole page");
  std::copy(page.begin(), page.end(), to_page.begin());
  const DType type = type_of(spec.index_keys);
  for (const KvLayout::Part& p : layout.parts)
    rearrange(spec.index_layout, {page.data() + p.keys, type, {layout.page_states, spec.index_dim}}, to,
              {to_page.data() + p.keys, type, {layout.page_states, spec.index_dim}});
}

}  // namespace winnow::cache
