// config.json and generation_config.json, separated by a zero byte. What is accepted must be usable without further checks:
// sizes positive, lists as long as the layers, every product of sizes within 64 bits.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "weights/config.h"
#include "weights/inventory.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace winnow::weights;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const auto config = parse_config(all.substr(0, zero), zero == std::string_view::npos ? "" : all.substr(zero + 1), "config.json");
  if (!config) {
    for (const char* c = config.error().what(); *c; ++c)
      if (*c == '\n') std::abort();  // one line
    return 0;
  }
  const Config& c = *config;
  if (c.layers.empty() || c.index_topk % c.index_kpool != 0 || c.experts_per_token > c.experts || c.hc_streams < 1 || c.hc_streams > 8) std::abort();
  for (int32_t id : c.eos_token_ids)
    if (id < 0 || id >= c.vocab_size) std::abort();
  if (static_cast<int64_t>(c.layers.size()) * c.experts > 4096) return 0;  // accepted, but long to walk
  for (Part part : {Part::trunk, Part::mtp, Part::vision})
    for_each_tensor(c, part, [](const std::string&, std::span<const int64_t> shape) {
      int64_t n = 4;
      for (int64_t d : shape)
        if (d < 1 || __builtin_mul_overflow(n, d, &n)) std::abort();
    });
  return 0;
}
