#include "cache/disk_record.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace winnow::cache {
namespace {

constexpr std::string_view kMagic = "winnow-c";
constexpr uint64_t kVersion = 1;
constexpr size_t kHashOffset = 120, kFixedBytes = 136;
constexpr std::string_view kPageSuffix = ".page", kSnapshotSuffix = ".snapshot";

class Writer {
 public:
  explicit Writer(std::vector<std::byte>* to) : to_(*to) {}
  void number(uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) to_.push_back(static_cast<std::byte>(v >> (8 * i)));
  }
  void number(int64_t v) { number(static_cast<uint64_t>(v), 8); }
  void key(PrefixKey k) {
    number(k.high, 8);
    number(k.low, 8);
  }

 private:
  std::vector<std::byte>& to_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : from_(from) {}
  uint64_t number(size_t bytes) {
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; ++i) v |= static_cast<uint64_t>(from_[at_ + i]) << (8 * i);
    at_ += bytes;
    return v;
  }
  int64_t signed_number() { return static_cast<int64_t>(number(8)); }
  PrefixKey key() {
    const uint64_t high = number(8);
    return {high, number(8)};
  }

 private:
  std::span<const std::byte> from_;
  size_t at_ = 0;
};

std::optional<uint64_t> hex(std::string_view digits) {
  uint64_t v = 0;
  for (char c : digits) {
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && (c < 'a' || c > 'f')) return std::nullopt;
    v = v << 4 | static_cast<uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return v;
}

}  // namespace

int64_t DiskFormat::header_bytes() const { return static_cast<int64_t>(kFixedBytes) + page_tokens * 4; }

std::string file_name(RecordId id) {
  return fmt::format("{:02x}/{:016x}{:016x}{}", id.key.high >> 56, id.key.high, id.key.low,
                     id.kind == RecordKind::page ? kPageSuffix : kSnapshotSuffix);
}

std::optional<RecordId> id_of_file_name(std::string_view name) {
  constexpr size_t kDigits = 3, kSuffix = kDigits + 32;
  if (name.size() < kSuffix) return std::nullopt;
  const auto high = hex(name.substr(kDigits, 16)), low = hex(name.substr(kDigits + 16, 16));
  const std::string_view suffix = name.substr(kSuffix);
  if (!high || !low || (suffix != kPageSuffix && suffix != kSnapshotSuffix)) return std::nullopt;
  const RecordId id{suffix == kPageSuffix ? RecordKind::page : RecordKind::snapshot, {*high, *low}};
  return file_name(id) == name ? std::optional(id) : std::nullopt;
}

PrefixKey hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.high64, h.low64};
}

PrefixKey header_hash(std::span<const std::byte> header) {
  std::vector<std::byte> copy(header.begin(), header.end());
  std::fill_n(copy.begin() + kHashOffset, 16, std::byte{0});
  return hash_of(copy);
}

std::vector<std::byte> encode_header(const DiskFormat& format, const DiskRecord& record, PrefixKey payload_hash) {
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<size_t>(format.header_bytes()));
  Writer w(&bytes);
  for (char c : kMagic) bytes.push_back(static_cast<std::byte>(c));
  w.number(kVersion, 4);
  w.number(static_cast<uint64_t>(record.kind), 4);
  w.key(format.fingerprint);
  w.key(record.key);
  w.key(record.parent);
  w.number(record.salt, 8);
  w.number(record.depth);
  w.number(record.folded.value);
  w.number(static_cast<int64_t>(record.tokens.size()));
  w.number(format.payload_bytes(record.kind));
  w.key(payload_hash);
  w.key({});
  for (int32_t t : record.tokens) w.number(static_cast<uint32_t>(t), 4);
  std::vector<std::byte> hash;
  Writer(&hash).key(hash_of(bytes));
  std::ranges::copy(hash, bytes.begin() + kHashOffset);
  return bytes;
}

Verdict parse_header(const DiskFormat& format, std::span<const std::byte> start, int64_t file_bytes, DiskHeader* header) {
  if (start.size() < kFixedBytes || std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) return Verdict::damaged;
  Reader r(start.subspan(kMagic.size()));
  if (r.number(4) != kVersion) return Verdict::foreign;
  DiskHeader h;
  const uint64_t kind = r.number(4);
  const PrefixKey fingerprint = r.key();
  h.record.key = r.key();
  h.record.parent = r.key();
  h.record.salt = r.number(8);
  h.record.depth = r.signed_number();
  h.record.folded = TokenPos(r.signed_number());
  const int64_t tokens = r.signed_number(), payload_bytes = r.signed_number();
  h.payload_hash = r.key();
  h.hash = r.key();
  // With another number of tokens the checksum cannot be looked at here; it is nothing of ours either way.
  if (tokens != format.page_tokens) return Verdict::foreign;
  if (static_cast<int64_t>(start.size()) < format.header_bytes()) return Verdict::damaged;
  start = start.first(static_cast<size_t>(format.header_bytes()));
  if (h.hash != header_hash(start)) return Verdict::damaged;

  if (fingerprint != format.fingerprint || kind > static_cast<uint64_t>(RecordKind::snapshot)) return Verdict::foreign;
  h.record.kind = static_cast<RecordKind>(kind);
  if (payload_bytes != format.payload_bytes(h.record.kind)) return Verdict::foreign;
  if (file_bytes != format.file_bytes(h.record.kind)) return Verdict::damaged;
  const DiskRecord& d = h.record;
  const int64_t folded = d.folded.value;
  if (d.depth < 1 || folded < 0 || (d.depth == 1 && d.parent != PrefixKey{})) return Verdict::damaged;
  const bool from_beyond = folded / tokens > d.depth || (folded / tokens == d.depth && folded % tokens != 0);
  if (d.kind == RecordKind::page ? folded != 0 : from_beyond) return Verdict::damaged;
  h.record.tokens.reserve(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) h.record.tokens.push_back(static_cast<int32_t>(r.number(4)));
  *header = std::move(h);
  return Verdict::good;
}

}  // namespace winnow::cache
