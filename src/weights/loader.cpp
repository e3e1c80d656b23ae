#include <map>
#include <new>

#include "base/units.h"
#include "weights/checkpoint.h"
#include "weights/inventory.h"
#include "weights/mapping.h"
#include "weights/source.h"
#include "weights/transfer.h"

namespace winnow::weights {
namespace {

constexpr int64_t kAlign = 64;

// Host memory for the time of one visit.
struct Bytes {
  explicit Bytes(int64_t n) : data(static_cast<std::byte*>(::operator new(static_cast<size_t>(n), std::align_val_t{kAlign}))) {}
  ~Bytes() { ::operator delete(data, std::align_val_t{kAlign}); }
  Bytes(const Bytes&) = delete;
  float* f32() const { return reinterpret_cast<float*>(data); }
  std::byte* data;
};

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

ConstTensorView packed(const std::byte* data, DType type, const std::vector<int64_t>& shape) {
  ConstTensorView v;
  v.data = data;
  v.dtype = type;
  v.rank = static_cast<int>(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    v.shape[i] = shape[i];
    v.stride[i] = stride;
    stride *= shape[i];
  }
  return v;
}

void append(std::vector<Transfer>& all, const std::vector<Piece>& pieces, std::byte* to, DType type, bool scale) {
  for (const Piece& p : pieces) {
    all.push_back({p, to, type, scale, nullptr});
    to += bytes_of(type, p.count);
  }
}

}  // namespace

struct Loader::Impl {
  enum class Form : uint8_t { matrix, f32, visit };

  struct Wish {
    Form form;
    std::string name;
    std::vector<int64_t> shape;
    Matrix* matrix = nullptr;
    ConstTensorView* view = nullptr;
    std::function<void(ConstTensorView)> use;
    Source source;

    DType stored_type() const { return source.data[0].entry.info->dtype; }
    bool quantised() const { return stored_type() == DType::e4m3; }
    DType type() const { return form != Form::matrix || stored_type() == DType::f16 ? DType::f32 : stored_type(); }  // in memory
  };

  const Checkpoint& checkpoint;
  device::Device& device;
  const Residence residence;
  std::vector<Wish> wishes = {};
  bool loaded = false;

  // Where each wish's values go in the one allocation. Two wishes for the same values in one form share them (tied
  // embeddings).
  struct Place {
    int64_t data = 0, scale = 0;
    const std::byte* mapped = nullptr;  // instead of data
  };
  std::vector<Place> places = {};
  int64_t bytes = 0, mapped_bytes = 0;
  std::map<const SafetensorsFile*, device::Buffer> maps = {};

  void resolve() {
    Problems problems;
    Finder finder(checkpoint, problems);
    std::set<Part> asked;
    for (Wish& w : wishes) {
      asked.insert(part_of(w.name, checkpoint.config()));
      w.source = finder.find(w.name, w.shape);
    }
    check_rest(checkpoint, asked, finder, problems);
    if (problems.count() > 0) throw problems.error(checkpoint.dir());
  }

  void expect_unchanged() const {
    for (const SafetensorsFile& f : checkpoint.files())
      if (const int code = f.file().changed()) throw error("{}: {}", f.path(), describe_read_error(code));
  }

  // Null if the values are to be copied. The header's check saw to it that they are aligned to their elements, which is
  // all that kernels ask of weights.
  const std::byte* map(const Wish& w) {
    if (residence != Residence::map || w.form != Form::matrix || w.type() != w.stored_type() || w.source.data.size() != 1) return nullptr;
    const Piece& p = w.source.data[0];
    device::Buffer& m = maps[p.entry.file];
    if (!m.data()) m = weights::map(p.entry.file->file(), p.entry.file->path()).or_throw();
    mapped_bytes += stored_bytes(p);
    return m.data() + p.entry.file->position(*p.entry.info) + bytes_of(w.type(), p.first);
  }

  int64_t reserve(int64_t n) {
    const int64_t at = bytes;
    bytes = round_up(bytes + n, kAlign);
    return at;
  }

  void plan() {
    std::map<std::tuple<const TensorInfo*, int64_t, DType>, Place> known;
    for (const Wish& w : wishes) {
      Place p;
      if (w.form != Form::visit) {
        const DType type = w.type();
        const auto key = std::tuple(w.source.data[0].entry.info, w.source.data[0].first, type);
        if (const auto k = known.find(key); k != known.end()) p = k->second;
        else {
          p.mapped = map(w);
          if (!p.mapped) p.data = reserve(bytes_of(type, elements(w.shape)));
          if (w.form == Form::matrix && w.quantised()) p.scale = reserve(bytes_of(DType::f32, w.source.scale[0].count));
          known.emplace(key, p);
        }
      }
      places.push_back(p);
    }
  }

  int64_t stored() const {
    int64_t n = 0;
    for (const Wish& w : wishes) {
      for (const Piece& p : w.source.data) n += stored_bytes(p);
      for (const Piece& p : w.source.scale) n += stored_bytes(p);
    }
    return n;
  }

  // Hands out the views and lists what is to be copied.
  std::vector<Transfer> fill(std::byte* base) {
    std::vector<Transfer> all;
    std::set<const std::byte*> begun;
    for (size_t i = 0; i < wishes.size(); ++i) {
      const Wish& w = wishes[i];
      if (w.form == Form::visit) continue;
      const bool direct = w.form == Form::matrix || !w.quantised();
      const std::byte* const mapped = places[i].mapped;
      std::byte* const copied = base + places[i].data;
      const std::byte* const data = mapped ? mapped : copied;
      const DType type = w.type();
      if (begun.insert(data).second && direct) {
        if (mapped) all.push_back({w.source.data[0], nullptr, type, false, mapped});
        else append(all, w.source.data, copied, type, false);
        append(all, w.source.scale, base + places[i].scale, DType::f32, true);
      }
      if (w.form == Form::f32) *w.view = packed(data, DType::f32, w.shape);
      else {
        w.matrix->data = packed(data, type, w.shape);
        w.matrix->scale =
            w.quantised() ? ConstTensorView(base + places[i].scale, DType::f32, {ceil_div(w.shape[0], kFp8Block), ceil_div(w.shape[1], kFp8Block)})
                          : ConstTensorView();
      }
    }
    return all;
  }

  void widen(const Wish& w, Transfers& transfers, float* to) {
    std::vector<Transfer> all;
    if (!w.quantised()) {
      append(all, w.source.data, reinterpret_cast<std::byte*>(to), DType::f32, false);
      return transfers.run(std::move(all));
    }
    const Bytes codes(elements(w.shape)), scale(bytes_of(DType::f32, w.source.scale[0].count));
    append(all, w.source.data, codes.data, DType::e4m3, false);
    append(all, w.source.scale, scale.data, DType::f32, true);
    transfers.run(std::move(all));
    dequantise(device.queue(), codes.data, scale.f32(), w.shape[0], w.shape[1], to);
  }
};

Loader::Loader(const Checkpoint& checkpoint, device::Device& device, Residence residence) : impl_(new Impl{checkpoint, device, residence}) {
  if (residence == Residence::map) device.expect_host_memory("--weights map");
}
Loader::~Loader() = default;

void Loader::matrix(Matrix* to, const std::string& name, int64_t n, int64_t k) {
  impl_->wishes.push_back({Impl::Form::matrix, official_name(name), {n, k}, to, nullptr, {}, {}});
}

void Loader::f32(ConstTensorView* to, const std::string& name, std::vector<int64_t> shape) {
  check(shape.size() <= 4, "a view has at most four dimensions");
  impl_->wishes.push_back({Impl::Form::f32, official_name(name), std::move(shape), nullptr, to, {}, {}});
}

void Loader::visit(const std::string& name, int64_t n, int64_t k, std::function<void(ConstTensorView)> use) {
  impl_->wishes.push_back({Impl::Form::visit, official_name(name), {n, k}, nullptr, nullptr, std::move(use), {}});
}

DType Loader::type_of(const std::string& name) const {
  Problems unheard;
  const auto type = Finder(impl_->checkpoint, unheard).type_of(official_name(name));
  if (!type || *type == DType::f16) return DType::f32;
  return *type;
}

std::vector<device::Buffer> Loader::load(const Progress& progress) {
  Impl& m = *impl_;
  check(!m.loaded, "a loader loads once");
  m.loaded = true;
  m.resolve();
  m.expect_unchanged();
  m.plan();
  std::vector<device::Buffer> buffers;
  buffers.push_back(m.device.allocate("weights", m.bytes));
  std::byte* const base = buffers[0].data();
  if (m.mapped_bytes > 0) m.device.list_in_place("weights, mapped", m.mapped_bytes);
  for (auto& [file, map] : m.maps) buffers.push_back(std::move(map));
  if (m.device.caps().plans_only) return buffers;
  Transfers transfers(m.device.queue(), m.stored(), progress);
  transfers.run(m.fill(base));
  for (size_t i = 0; i < m.wishes.size(); ++i) {
    const Impl::Wish& w = m.wishes[i];
    if (w.form == Impl::Form::f32 && w.quantised()) m.widen(w, transfers, reinterpret_cast<float*>(base + m.places[i].data));
    if (w.form != Impl::Form::visit) continue;
    const Bytes scratch(bytes_of(DType::f32, elements(w.shape)));
    m.widen(w, transfers, scratch.f32());
    w.use(packed(scratch.data, DType::f32, w.shape));
  }
  m.expect_unchanged();
  transfers.finish();
  return buffers;
}

}  // namespace winnow::weights
