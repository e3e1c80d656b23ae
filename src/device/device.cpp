#include "device/device.h"

namespace winnow::device {

std::string_view name_of(Backend b) {
  switch (b) {
    case Backend::ref: return "ref";
    case Backend::cpu: return "cpu";
    case Backend::sim: return "sim";
    case Backend::cuda: return "cuda";
    case Backend::hip: return "hip";
    case Backend::vulkan: return "vulkan";
  }
  return "?";
}

Result<Backend> parse_backend(std::string_view name) {
  for (Backend b : {Backend::ref, Backend::cpu, Backend::sim, Backend::cuda, Backend::hip, Backend::vulkan}) {
    if (name != name_of(b)) continue;
    if (b == Backend::ref || b == Backend::cpu) return b;
    return Error(fmt::format("back end '{}' is not in this build (in it: cpu, ref)", name));
  }
  return Error(fmt::format("unknown back end '{}' (known: cpu, cuda, hip, vulkan, sim, ref)", name), Failure::usage);
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::amx: return "amx";
  }
  return "?";
}

Result<Isa> parse_isa(std::string_view name) {
  for (Isa i : {Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx})
    if (name == name_of(i)) return i;
  return Error(fmt::format("unknown instruction set '{}' (known: avx2, avx512, avx512_bf16, amx)", name), Failure::usage);
}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  std::swap(release_, o.release_);
  return *this;
}

Buffer::~Buffer() {
  if (data_) release_(data_, bytes_);
}

void Trace::add(const std::string& label, double seconds, double bytes, double flops) {
  Entry& e = entries_[label];
  ++e.calls;
  e.seconds += seconds;
  e.bytes += bytes;
  e.flops += flops;
}

void Device::expect_host_memory(std::string_view wish) const {
  if (!caps().host_memory) throw error("{}: {} cannot read memory of the host in place", wish, description());
}

void Device::account(std::string_view what, int64_t bytes, bool in_place) {
  for (PlanLine& line : plan_)
    if (line.what == what) {
      line.bytes += bytes;
      return;
    }
  plan_.push_back({std::string(what), bytes, in_place});
}

}  // namespace winnow::device
