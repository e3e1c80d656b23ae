#include "weights/transfer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>

#include "base/finite.h"
#include "base/units.h"
#include "device/cpu/workers.h"
#include "weights/json.h"

namespace winnow::weights {
namespace {

constexpr int64_t kChunkBytes = 256 << 10;  // stays in a core's second-level cache between the read and the look at it
constexpr size_t kChunksAtOnce = 16;        // 4 MB: two workers seldom meet in one huge page, which each would clear
constexpr size_t kReadAhead = 128;          // chunks
constexpr int64_t kReportUs = 100'000;

int64_t now_us() { return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A piece of a transfer that one worker does at a time.
struct Chunk {
  const Transfer* transfer;
  int64_t first, count;  // elements within the transfer

  DType stored() const { return transfer->piece.entry.info->dtype; }
  int64_t bytes() const { return bytes_of(stored(), count); }
  const File& file() const { return transfer->piece.entry.file->file(); }
  int64_t position() const {
    const Piece& p = transfer->piece;
    return p.entry.file->position(*p.entry.info) + bytes_of(stored(), p.first + first);
  }
  void will_need() const { file().will_need(position(), bytes()); }
};

// The first chunk that failed, in file order. Chunks are taken in that order and a worker stops at its first failure, so
// the first of all is always among those noted.
struct Failed {
  std::mutex mutex;
  const Chunk* chunk = nullptr;
  int code = 0;
  void note(const Chunk* c, int why) {
    const std::lock_guard lock(mutex);
    if (chunk && chunk < c) return;
    chunk = c;
    code = why;
  }
};

bool all_positive(const float* v, int64_t n) {
  bool good = true;
  for (int64_t i = 0; i < n; ++i) good &= v[i] > 0.0f;
  return good;
}

void widen(DType from, const std::byte* v, int64_t n, float* to) {
  switch (from) {
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) to[i] = to_float(reinterpret_cast<const Bf16*>(v)[i]);
      break;
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) to[i] = to_float(reinterpret_cast<const F16*>(v)[i]);
      break;
    default: check(false, "only bf16 and f16 are widened");
  }
}

// 0, a read error, or kBadValue.
constexpr int kBadValue = -2;
int move(const Chunk& c, std::byte* bounce) {
  const Transfer& t = *c.transfer;
  const DType from = c.stored();
  if (t.mapped) return all_finite(from, t.mapped + bytes_of(from, c.first), c.count) ? 0 : kBadValue;
  const bool direct = from == t.type;
  std::byte* const to = t.to + bytes_of(t.type, c.first);
  std::byte* const raw = direct ? to : bounce;
  if (const int e = c.file().read(c.position(), {raw, static_cast<size_t>(c.bytes())})) return e;
  if (!all_finite(from, raw, c.count)) return kBadValue;
  if (t.scale && !all_positive(reinterpret_cast<const float*>(raw), c.count)) return kBadValue;
  if (!direct) widen(from, raw, c.count, reinterpret_cast<float*>(to));
  return 0;
}

Error explain(const Transfer& t, int code) {
  const Piece& p = t.piece;
  if (code != kBadValue) return error("{}: tensor {}: {}", p.entry.file->path(), *p.name, describe_read_error(code));
  if (t.scale) return error("{}: tensor {}: a scale is NaN, infinite or not positive", p.entry.file->path(), *p.name);
  return error("{}: tensor {}: a value is NaN or infinite", p.entry.file->path(), *p.name);
}

}  // namespace

int64_t stored_bytes(const Piece& p) { return bytes_of(p.entry.info->dtype, p.count); }

Transfers::Transfers(device::Queue& queue, int64_t total_bytes, const Progress& progress) : queue_(queue), total_(total_bytes), progress_(progress) {
  if (progress_) progress_(0, total_);
  reported_us_ = now_us();
}

void Transfers::finish() {
  if (progress_) progress_(total_, total_);
}

void Transfers::run(std::vector<Transfer> transfers) {
  std::sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    auto key = [](const Transfer& t) { return std::tuple(t.piece.entry.file, t.piece.entry.info->offset, t.piece.first); };
    return key(a) < key(b);
  });
  std::vector<Chunk> chunks;
  for (const Transfer& t : transfers) {
    const int64_t step = kChunkBytes * 8 / bits_of(t.piece.entry.info->dtype);
    for (int64_t first = 0; first < t.piece.count; first += step) chunks.push_back({&t, first, std::min(step, t.piece.count - first)});
  }
  device::Workers& workers = queue_.workers();
  std::vector<std::byte> bounce(static_cast<size_t>(kChunkBytes * workers.count()));
  Failed failed;
  std::atomic<size_t> taken{0};
  std::atomic<int64_t> done{done_};
  while (taken.load() < chunks.size() && !failed.chunk) {
    const int64_t deadline = now_us() + kReportUs;
    workers.run(workers.count(), 1, [&](int64_t, int64_t, int worker) {
      std::byte* const own = bounce.data() + kChunkBytes * worker;
      for (size_t first; now_us() < deadline && (first = taken.fetch_add(kChunksAtOnce)) < chunks.size();) {
        const size_t end = std::min(first + kChunksAtOnce, chunks.size());
        for (size_t i = first + kReadAhead; i < std::min(end + kReadAhead, chunks.size()); ++i) chunks[i].will_need();
        for (size_t i = first; i < end; ++i) {
          if (const int code = move(chunks[i], own)) return failed.note(&chunks[i], code);
          done.fetch_add(chunks[i].bytes(), std::memory_order_relaxed);
        }
      }
    });
    done_ = done.load();
    if (progress_ && now_us() - reported_us_ >= kReportUs) {
      progress_(done_, total_);
      reported_us_ = now_us();
    }
  }
  if (failed.chunk) throw explain(*failed.chunk->transfer, failed.code);
}

void dequantise(device::Queue& queue, const std::byte* codes, const float* scale, int64_t n, int64_t k, float* to) {
  std::array<float, 256> value;
  for (int i = 0; i < 256; ++i) value[static_cast<size_t>(i)] = to_float(E4m3{static_cast<uint8_t>(i)});
  const int64_t blocks = ceil_div(k, kFp8Block);
  queue.workers().run(n, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < k; ++j) to[i * k + j] = value[static_cast<size_t>(codes[i * k + j])] * scale[i / kFp8Block * blocks + j / kFp8Block];
  });
}

}  // namespace winnow::weights
