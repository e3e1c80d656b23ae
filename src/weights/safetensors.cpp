#include "weights/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "weights/json.h"
#include "weights/mapping.h"

namespace winnow::weights {
namespace json = boost::json;
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and are read as they are");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr size_t kMaxRank = 8;
constexpr int64_t kLengthBytes = 8;

std::optional<DType> parse_dtype(std::string_view s) {
  if (s == "F32") return DType::f32;
  if (s == "BF16") return DType::bf16;
  if (s == "F16") return DType::f16;
  if (s == "F8_E4M3") return DType::e4m3;
  if (s == "F8_E8M0") return DType::e8m0;
  if (s == "F4") return DType::e2m1;
  if (s == "I64") return DType::i64;
  if (s == "I32") return DType::i32;
  if (s == "I16") return DType::i16;
  if (s == "I8") return DType::i8;
  if (s == "U8") return DType::u8;
  return std::nullopt;
}

std::string_view dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::e4m3: return "F8_E4M3";
    case DType::e8m0: return "F8_E8M0";
    case DType::e2m1: return "F4";
    case DType::i64: return "I64";
    case DType::i32: return "I32";
    case DType::i16: return "I16";
    case DType::i8: return "I8";
    case DType::u8: return "U8";
  }
  return "?";
}

// Reads one tensor's entry; `at` begins every message: file and tensor.
class Entry {
 public:
  Entry(const json::value& v, std::string at) : v_(v), at_(std::move(at)) {}

  Result<TensorInfo> read(int64_t data_bytes) {
    if (!v_.is_object()) return error("{}: not an object", at_);
    for (const auto& [key, value] : v_.get_object())
      if (key != "dtype" && key != "shape" && key != "data_offsets") return error("{}: unknown field {}", at_, quoted(key));
    TensorInfo t;
    if (auto e = dtype(t)) return *e;
    if (auto e = shape(t)) return *e;
    if (auto e = offsets(t, data_bytes)) return *e;
    return t;
  }

 private:
  std::optional<Error> dtype(TensorInfo& t) const {
    const json::value* d = v_.get_object().if_contains("dtype");
    if (!d || !d->is_string()) return error("{}: dtype is missing or not a string", at_);
    const auto type = parse_dtype(std::string_view(d->get_string()));
    if (!type) return error("{}: dtype {} is not supported", at_, quoted(std::string_view(d->get_string())));
    t.dtype = *type;
    return std::nullopt;
  }

  std::optional<Error> shape(TensorInfo& t) const {
    const json::value* s = v_.get_object().if_contains("shape");
    if (!s || !s->is_array()) return error("{}: shape is missing or not an array", at_);
    if (s->get_array().size() > kMaxRank) return error("{}: shape has {} dimensions, at most {} are read", at_, s->get_array().size(), kMaxRank);
    int64_t elements = 1;
    for (const json::value& d : s->get_array()) {
      if (!d.is_int64() || d.get_int64() < 0) return error("{}: shape has a dimension that is not a whole number from 0 to 2^63 - 1", at_);
      t.shape.push_back(d.get_int64());
      if (__builtin_mul_overflow(elements, d.get_int64(), &elements)) return error("{}: shape overflows 64 bits", at_);
    }
    int64_t bits = 0;
    if (__builtin_mul_overflow(elements, int64_t{bits_of(t.dtype)}, &bits)) return error("{}: shape overflows 64 bits", at_);
    if (bits % 8 != 0) return error("{}: shape of {} elements of {} does not fill whole bytes", at_, elements, dtype_name(t.dtype));
    t.bytes = bits / 8;
    return std::nullopt;
  }

  std::optional<Error> offsets(TensorInfo& t, int64_t data_bytes) const {
    const json::value* o = v_.get_object().if_contains("data_offsets");
    if (!o || !o->is_array() || o->get_array().size() != 2) return error("{}: data_offsets is missing or not an array of two", at_);
    int64_t at[2];
    for (int i = 0; i < 2; ++i) {
      const json::value& n = o->get_array()[static_cast<size_t>(i)];
      if (!n.is_int64() || n.get_int64() < 0) return error("{}: data_offsets has an entry that is not a whole number from 0 to 2^63 - 1", at_);
      at[i] = n.get_int64();
    }
    if (at[0] > at[1]) return error("{}: data_offsets end ({}) before they begin ({})", at_, at[1], at[0]);
    if (at[1] > data_bytes) return error("{}: data_offsets end at {}, but the file has {} bytes of data", at_, at[1], data_bytes);
    if (at[1] - at[0] != t.bytes) return error("{}: data_offsets span {} bytes where shape and dtype need {}", at_, at[1] - at[0], t.bytes);
    const int64_t align = std::max(1, bits_of(t.dtype) / 8);
    if (at[0] % align != 0) return error("{}: data_offsets begin at {}, not aligned to {} bytes", at_, at[0], align);
    t.offset = at[0];
    return std::nullopt;
  }

  const json::value& v_;
  std::string at_;
};

// The data section must be covered exactly: no byte twice, no byte never.
std::optional<Error> check_coverage(const std::map<std::string, TensorInfo, std::less<>>& tensors, int64_t data_bytes, std::string_view where) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  order.reserve(tensors.size());
  for (const auto& [name, t] : tensors) order.emplace_back(&name, &t);
  std::sort(order.begin(), order.end(),
            [](auto& a, auto& b) { return std::pair(a.second->offset, a.second->bytes) < std::pair(b.second->offset, b.second->bytes); });
  int64_t end = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [name, t] = order[i];
    if (t->offset < end) return error("{}: tensors {} and {} overlap in data_offsets", where, quoted(*order[i - 1].first), quoted(*name));
    if (t->offset > end) return error("{}: data_offsets leave a hole of {} bytes before tensor {}", where, t->offset - end, quoted(*name));
    end = t->offset + t->bytes;
  }
  if (end != data_bytes) return error("{}: data_offsets leave {} bytes at the end of the file without a tensor", where, data_bytes - end);
  return std::nullopt;
}

// The file that a path means, through symbolic links, and the one beside it that is written first. What is there and is no
// file (a device, a folder) is not replaced.
std::pair<std::string, std::string> place_of(const std::string& path) {
  struct stat there{};
  std::string target = path;
  if (::stat(path.c_str(), &there) == 0) {
    if (!S_ISREG(there.st_mode)) throw Error(fmt::format("{}: is there and is no file", path), Failure::usage);
    if (char* real = ::realpath(path.c_str(), nullptr)) {
      target = real;
      ::free(real);
    }
  }
  const std::string part = target + ".part";
  std::remove(part.c_str());
  return {target, part};
}

}  // namespace

Result<std::map<std::string, TensorInfo, std::less<>>> parse_header(std::string_view text, int64_t data_bytes, std::string_view where) {
  if (text.empty() || text.front() != '{') return error("{}: the header does not begin with '{{'", where);
  auto root = parse_json(text, fmt::format("{}: header", where));
  if (!root) return root.error();
  if (!root->is_object()) return error("{}: the header is not a JSON object", where);
  std::map<std::string, TensorInfo, std::less<>> tensors;
  for (const auto& [key, value] : root->get_object()) {
    const std::string_view name(key.data(), key.size());
    if (name == "__metadata__") {
      if (!value.is_object()) return error("{}: __metadata__ is not an object", where);
      for (const auto& [k, v] : value.get_object())
        if (!v.is_string()) return error("{}: __metadata__ entry {} is not a string", where, quoted(std::string_view(k.data(), k.size())));
      continue;
    }
    if (name.empty()) return error("{}: a tensor has an empty name", where);
    auto t = Entry(value, fmt::format("{}: tensor {}", where, quoted(name))).read(data_bytes);
    if (!t) return t.error();
    tensors.emplace(name, *std::move(t));
  }
  if (auto e = check_coverage(tensors, data_bytes, where)) return *e;
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto file = File::open(path);
  if (!file) return file.error();
  SafetensorsFile f(*std::move(file));
  f.path_ = path;
  const int64_t size = f.file_.size();
  uint64_t header = 0;
  if (size < kLengthBytes) return error("{}: has {} bytes; a safetensors file begins with the 8-byte length of its header", path, size);
  if (const int e = f.file_.read(0, std::as_writable_bytes(std::span(&header, 1)))) return error("{}: {}", path, describe_read_error(e));
  if (header > static_cast<uint64_t>(kMaxHeaderBytes))
    return error("{}: the header is said to have {} bytes; at most {} are read", path, header, kMaxHeaderBytes);
  if (static_cast<int64_t>(header) > size - kLengthBytes)
    return error("{}: the header is said to have {} bytes, but the file has {}: truncated?", path, header, size);
  f.data_start_ = kLengthBytes + static_cast<int64_t>(header);

  auto map = weights::map(f.file_, path);
  if (!map) return map.error();
  f.map_ = *std::move(map);
  const std::string text(reinterpret_cast<const char*>(f.map_.data()) + kLengthBytes, header);
  auto tensors = parse_header(text, size - f.data_start_, path);
  if (!tensors) return tensors.error();
  f.tensors_ = *std::move(tensors);
  for (const auto& [name, t] : f.tensors_)
    if (const int64_t align = std::max(1, bits_of(t.dtype) / 8); f.position(t) % align != 0)
      return error("{}: tensor {}: its data at byte {} is not aligned to {} bytes; pad the header to a multiple of 8", path, quoted(name),
                   f.position(t), align);
  return f;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto i = tensors_.find(name);
  return i == tensors_.end() ? nullptr : &i->second;
}

std::span<const std::byte> SafetensorsFile::data(const TensorInfo& t) const { return {map_.data() + position(t), static_cast<size_t>(t.bytes)}; }

ConstTensorView SafetensorsFile::view(std::string_view name) const {
  const TensorInfo* t = find(name);
  check(t, "a view of a tensor that the file does not have");
  check(t->shape.size() <= 4, "a view of a tensor of more than four dimensions");
  ConstTensorView v;
  v.data = map_.data() + position(*t);
  v.dtype = t->dtype;
  v.rank = static_cast<int>(t->shape.size());
  int64_t stride = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    v.shape[static_cast<size_t>(i)] = t->shape[static_cast<size_t>(i)];
    v.stride[static_cast<size_t>(i)] = stride;
    stride *= v.shape[static_cast<size_t>(i)];
  }
  return v;
}

void check_writable(const std::string& path) {
  const std::string part = place_of(path).second;
  std::FILE* f = std::fopen(part.c_str(), "wbxe");
  if (!f) throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)), Failure::usage);
  std::fclose(f);
  std::remove(part.c_str());
}

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, ConstTensorView>>& tensors) {
  // Wide types first, as the format's own library orders them: then every tensor is aligned without holes.
  std::vector<const std::pair<std::string, ConstTensorView>*> order;
  for (const auto& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return std::pair(-bits_of(a->second.dtype), a) < std::pair(-bits_of(b->second.dtype), b);  // else in the order given
  });

  json::object header;
  int64_t offset = 0;
  for (const auto* t : order) {
    const ConstTensorView& v = t->second;
    check(v.packed(), "only packed tensors can be written");
    check(!header.contains(t->first), "two tensors of one name");
    json::array shape;
    for (int i = 0; i < v.rank; ++i) shape.push_back(v.shape[static_cast<size_t>(i)]);
    header[t->first] = {
        {"dtype", json::string_view(dtype_name(v.dtype))}, {"shape", std::move(shape)}, {"data_offsets", {offset, offset + v.bytes()}}};
    offset += v.bytes();
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');

  const auto [target, part] = place_of(path);
  std::FILE* f = std::fopen(part.c_str(), "wbxe");  // x: never through a link that somebody put there
  if (!f) throw Error(fmt::format("{}: cannot be written: {}", part, std::strerror(errno)), Failure::work);
  const uint64_t length = text.size();
  bool ok = std::fwrite(&length, sizeof length, 1, f) == 1 && std::fwrite(text.data(), 1, text.size(), f) == text.size();
  for (const auto* t : order) {
    const size_t bytes = static_cast<size_t>(t->second.bytes());
    ok = ok && std::fwrite(t->second.data, 1, bytes, f) == bytes;
  }
  ok = std::fflush(f) == 0 && ok;
  const int code = errno;
  ok = std::fclose(f) == 0 && ok;
  if (!ok || std::rename(part.c_str(), target.c_str()) != 0) {
    const int why = ok ? errno : code;
    std::remove(part.c_str());
    throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(why)), Failure::work);
  }
}

}  // namespace winnow::weights
