// The format of a record of the disk tier: one file a record, <folder>/<first two hex digits>/<key in 32 hex digits>.page or
// .snapshot. Names are made of keys only. Everything is little-endian:
//
//   offset  bytes
//        0      8  magic "winnow-c"
//        8      4  version of this format, 1
//       12      1  kind: 0 page, 1 snapshot
//       13      3  zero
//       16     16  fingerprint of model, layout and arithmetic (high, low; so are all 128-bit numbers)
//       32     16  key
//       48     16  key of the page before; zero behind the root
//       64      8  salt
//       72      8  depth: pages up to and with this one
//       80      8  folded: tokens in the recurrent states of a snapshot; zero for a page
//       88      8  tokens that follow the header
//       96      8  bytes of payload that follow the tokens
//      104     16  XXH3-128 of the payload
//      120     16  XXH3-128 of header and tokens, these 16 bytes taken as zero
//      136         tokens, 4 bytes each; then the payload
//
// All records of one kind and format have one size, and the header alone tells whether a record is ours. The checksums find what a crash or
// a disk did to a file; they are no defence against somebody who can write to the folder.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "cache/prefix_key.h"

namespace winnow::cache {

enum class RecordKind : uint8_t { page, snapshot };

// What a file's header says.
struct DiskRecord {
  RecordKind kind = RecordKind::page;
  PrefixKey key, parent;        // parent: of the page before; zero behind the root
  uint64_t salt = 0;            // records of different salts are not shared
  int64_t depth = 0;            // pages up to and with this one
  TokenPos folded;              // of a snapshot
  std::vector<int32_t> tokens;  // of its page, both kinds
  int64_t used_s = 0;           // when it was last written or touched: the file's time, not part of the header
};

// Which file: at most one record of each kind has a key.
struct RecordId {
  RecordKind kind = RecordKind::page;
  PrefixKey key;
  bool operator==(const RecordId&) const = default;
};
struct RecordIdHash {
  size_t operator()(const RecordId& id) const { return PrefixKeyHash{}(id.key) + static_cast<size_t>(id.kind); }
};

// What the records of one model, layout and page size have in common.
struct DiskFormat {
  int64_t page_bytes = 0, snapshot_bytes = 0;  // payloads
  int64_t page_tokens = 0;
  PrefixKey fingerprint;

  int64_t payload_bytes(RecordKind kind) const { return kind == RecordKind::page ? page_bytes : snapshot_bytes; }
  int64_t header_bytes() const;  // with the tokens
  int64_t file_bytes(RecordKind kind) const { return header_bytes() + payload_bytes(kind); }
};

std::string file_name(RecordId id);                              // "ab/ab01...ef.page"
std::optional<RecordId> id_of_file_name(std::string_view name);  // of exactly such a name

// Of a file with our name.
enum class Verdict : uint8_t {
  good,
  foreign,  // another version, fingerprint, page size, payload size, or a kind that is not known: never used
  damaged,  // neither ours nor anybody's
};

struct DiskHeader {
  DiskRecord record;
  PrefixKey payload_hash, hash;
};

// `start`: the first header_bytes() of a file of file_bytes, or all of it if it is shorter. Writes *header if the verdict is good;
// then everything that a DiskRecord promises holds, and encode_header() gives the same bytes again.
Verdict parse_header(const DiskFormat& format, std::span<const std::byte> start, int64_t file_bytes, DiskHeader* header);
// Header and tokens of a record whose payload has payload_hash.
std::vector<std::byte> encode_header(const DiskFormat& format, const DiskRecord& record, PrefixKey payload_hash);

PrefixKey hash_of(std::span<const std::byte> bytes);
// What stands at offset 120. `header` has header and tokens.
PrefixKey header_hash(std::span<const std::byte> header);

}  // namespace winnow::cache
