// The header of a record of the disk tier. With the first byte even, the checksum is made good first, so that what lies behind it is
// reached. What is accepted must be what a DiskRecord promises and the only way to write it.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cache/disk_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace winnow::cache;
  if (size < 2) return 0;
  const DiskFormat format{.page_bytes = 100, .snapshot_bytes = 300, .page_tokens = 4, .fingerprint = {1, 2}};
  const bool mend = data[0] % 2 == 0;
  const RecordKind kind = data[1] % 2 == 0 ? RecordKind::page : RecordKind::snapshot;
  const auto bytes = std::as_bytes(std::span(data + 2, size - 2));
  std::vector<std::byte> start(bytes.begin(), bytes.end());
  const auto whole = static_cast<size_t>(format.header_bytes());
  if (mend && start.size() >= whole) {
    const PrefixKey hash = header_hash(std::span(start).first(whole));
    for (size_t i = 0; i < 8; ++i) {
      start[120 + i] = static_cast<std::byte>(hash.high >> (8 * i));
      start[128 + i] = static_cast<std::byte>(hash.low >> (8 * i));
    }
  }
  DiskHeader header;
  if (parse_header(format, start, format.file_bytes(kind), &header) != Verdict::good) return 0;
  const DiskRecord& r = header.record;
  if (r.kind != kind || r.depth < 1 || static_cast<int64_t>(r.tokens.size()) != format.page_tokens || r.folded.value < 0) std::abort();
  if (r.kind == RecordKind::page ? r.folded.value != 0 : (r.folded.value - 1) / format.page_tokens >= r.depth) std::abort();
  if (r.depth == 1 && r.parent != PrefixKey{}) std::abort();
  start.resize(whole);
  if (encode_header(format, r, header.payload_hash) != start) std::abort();
  const auto id = id_of_file_name(file_name({r.kind, r.key}));
  if (!id || *id != RecordId{r.kind, r.key}) std::abort();
  return 0;
}
