#include "cache/disk_tier.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace winnow::cache {
namespace {

constexpr int64_t kPartBytes = 4 << 20;  // of a payload between two looks at the queue of reads
constexpr size_t kMostTouches = 4096;    // that wait; the time of use is only a hint
constexpr int kNice = 10;                // of the thread that reads and writes
constexpr const char* kLockName = "lock";

DiskFormat format_of(const DiskOptions& o) {
  return {.page_bytes = o.page_bytes, .snapshot_bytes = o.snapshot_bytes, .page_tokens = o.page_tokens, .fingerprint = o.fingerprint};
}

int lock_folder(const DiskFiles& files, const std::string& folder) {
  if (const int e = files.make_folder(folder))
    throw error("--cache-dir: {} cannot be made: {}; name a folder whose parent is there and may be written", folder, describe_file_error(e));
  int held = -1;
  if (const int e = files.lock(folder + "/" + kLockName, &held)) {
    if (e == EWOULDBLOCK) throw error("--cache-dir: {} is in use by another winnow; give each process a folder of its own", folder);
    throw error("--cache-dir: {} cannot be used: {}; name a folder that winnow may read and write", folder, describe_file_error(e));
  }
  return held;
}

}  // namespace

void check_folder(const DiskFiles& files, const std::string& folder) { files.close(lock_folder(files, folder)); }

DiskTier::DiskTier(const DiskOptions& options, DiskFiles files, std::function<void()> on_done)
    : folder_(options.folder),
      format_(format_of(options)),
      limit_bytes_(options.limit_bytes),
      queue_bytes_(options.queue_bytes),
      files_(std::move(files)),
      on_done_(std::move(on_done)) {
  check(options.page_tokens > 0 && options.page_bytes >= 0 && options.snapshot_bytes >= 0, "records of the disk tier without a size");
  check(queue_bytes_ >= std::max(options.page_bytes, options.snapshot_bytes), "the queue of the disk tier cannot hold one record");
  const int64_t least = format_.file_bytes(RecordKind::page) + format_.file_bytes(RecordKind::snapshot);
  if (limit_bytes_ < least)
    throw error("--cache-dir: its limit of {} bytes does not hold one page and one snapshot, {} bytes; raise the limit", limit_bytes_, least);
  lock_ = lock_folder(files_, folder_);
  DiskScan scan;
  try {
    scan = scan_folder(files_, folder_, format_, limit_bytes_);
  } catch (...) {
    files_.close(lock_);
    throw;
  }
  counts_.found = static_cast<int64_t>(scan.own.size());
  counts_.foreign = static_cast<int64_t>(scan.foreign.size());
  counts_.damaged = scan.damaged;
  counts_.orphaned = scan.orphaned;
  counts_.beyond_limit = scan.beyond_limit;
  for (DiskScan::Own& own : scan.own) {
    add({own.record.kind, own.record.key}, {.hash = own.hash});
    found_.push_back(std::move(own.record));
  }
  for (const DiskScan::Foreign& f : scan.foreign) {
    foreign_[f.id] = f.bytes;
    foreign_by_age_.push_back(f.id);
    foreign_bytes_ += f.bytes;
  }
  make_room(0);
  thread_ = std::thread([this, begin = options.on_start] {
    if (begin) begin();
    run();
  });
}

DiskTier::~DiskTier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    reads_.clear();
    touches_.clear();
  }
  wake_.notify_all();
  thread_.join();
  files_.close(lock_);
}

std::vector<DiskRecord> DiskTier::take_found() {
  const std::lock_guard lock(mutex_);
  return std::exchange(found_, {});
}

std::string DiskTier::notice() const {
  const std::lock_guard lock(mutex_);
  const Counts& c = counts_;
  std::string text;
  const auto add = [&](int64_t n, std::string_view what) {
    if (n > 0) text += fmt::format("{}{} {}", text.empty() ? "" : "; ", n, what);
  };
  add(c.foreign, "records of another model, version or page size are not used and stay until their space is needed");
  add(c.damaged, "damaged records were deleted");
  add(c.orphaned, "records without the page before them were deleted");
  add(c.beyond_limit, "records beyond the limit were deleted");
  return text.empty() ? text : fmt::format("--cache-dir: {}: {}", folder_, text);
}

bool DiskTier::has(RecordKind kind, PrefixKey key) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains({kind, key});
}

bool DiskTier::room_for(RecordKind kind) const {
  const std::lock_guard lock(mutex_);
  return own_bytes_ + stuck_bytes_ + format_.file_bytes(kind) <= limit_bytes_;  // foreign records make room
}

// Removes foreign records until `bytes` more are within the limit.
void DiskTier::make_room(int64_t bytes) {
  while (!foreign_by_age_.empty() && own_bytes_ + stuck_bytes_ + foreign_bytes_ + bytes > limit_bytes_) {
    remove_foreign(foreign_by_age_.back());
    foreign_by_age_.pop_back();
  }
}

void DiskTier::remove_foreign(RecordId id) {
  const auto found = foreign_.find(id);
  if (found == foreign_.end()) return;
  removals_.push_back({id, found->second});
  foreign_bytes_ -= found->second;
  foreign_.erase(found);
}

bool DiskTier::write(DiskRecord record, std::span<const std::byte> payload) { return write(std::move(record), std::span(&payload, 1)); }

bool DiskTier::write(DiskRecord record, std::span<const std::span<const std::byte>> parts) {
  int64_t bytes = 0;
  for (const auto& part : parts) bytes += static_cast<int64_t>(part.size());
  check(bytes == format_.payload_bytes(record.kind), "a payload of another size than its kind has");
  check(static_cast<int64_t>(record.tokens.size()) == format_.page_tokens, "a record of another number of tokens than a page has");
  const RecordId id{record.kind, record.key};
  auto waiting = std::make_shared<Waiting>();
  {
    const std::lock_guard lock(mutex_);
    if (waiting_bytes_ + bytes > queue_bytes_ || entries_.contains(id)) return false;
    if (own_bytes_ + stuck_bytes_ + format_.file_bytes(id.kind) > limit_bytes_) return false;
    if (const size_t spare = spare_.capacity(); spare / 2 <= static_cast<size_t>(bytes))
      waiting->payload.swap(spare_);  // not a snapshot's for a page
  }
  waiting->record = std::move(record);
  waiting->payload.reserve(static_cast<size_t>(bytes));
  for (const auto& part : parts) waiting->payload.insert(waiting->payload.end(), part.begin(), part.end());
  {
    // Only the caller's thread adds entries, so there is as much room as a moment ago.
    const std::lock_guard lock(mutex_);
    remove_foreign(id);
    make_room(format_.file_bytes(id.kind));
    waiting_bytes_ += bytes;
    writes_.push_back({id, add(id, {.waiting = std::move(waiting)})});
  }
  wake_.notify_one();
  return true;
}

uint64_t DiskTier::add(RecordId id, Entry entry) {
  entry.number = ++numbers_;
  entries_[id] = std::move(entry);
  own_bytes_ += format_.file_bytes(id.kind);
  ++(id.kind == RecordKind::page ? counts_.pages : counts_.snapshots);
  return numbers_;
}

// The record is no longer there: its bytes are free, its file is whoever called's to remove.
void DiskTier::forget(std::unordered_map<RecordId, Entry, RecordIdHash>::iterator entry) {
  const RecordId id = entry->first;
  own_bytes_ -= format_.file_bytes(id.kind);
  --(id.kind == RecordKind::page ? counts_.pages : counts_.snapshots);
  if (entry->second.waiting) waiting_bytes_ -= format_.payload_bytes(id.kind);
  entries_.erase(entry);
}

void DiskTier::remove(RecordKind kind, PrefixKey key) {
  const RecordId id{kind, key};
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(id);
    if (entry == entries_.end()) return;
    const bool stored = !entry->second.waiting;  // one being written now is dropped by its writer
    forget(entry);
    if (stored) removals_.push_back({id, format_.file_bytes(kind)});
  }
  wake_.notify_one();
}

uint64_t DiskTier::read(RecordKind kind, PrefixKey key) {
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = ++tickets_;
    reads_.push_back({ticket, {kind, key}});
  }
  wake_.notify_one();
  return ticket;
}

void DiskTier::touch(RecordKind kind, PrefixKey key) {
  {
    const std::lock_guard lock(mutex_);
    if (touches_.size() >= kMostTouches) return;
    touches_.push_back({kind, key});
  }
  wake_.notify_one();
}

void DiskTier::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return idle(); });
}

bool DiskTier::poll(Done* done) {
  const std::lock_guard lock(mutex_);
  while (!done_.empty()) {
    *done = std::move(done_.front());
    done_.pop_front();
    if (done->ticket != 0 || !entries_.contains({done->kind, done->key})) return true;  // else it was written anew
  }
  return false;
}

int64_t DiskTier::bytes() const {
  const std::lock_guard lock(mutex_);
  return own_bytes_ + foreign_bytes_ + stuck_bytes_;
}

DiskTier::Counts DiskTier::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

// --- the tier's thread ---------------------------------------------------------------------------------------------------------------------------

void DiskTier::run() {
  // A step waits for its slowest worker, so this thread must not take the processor from one each time that it wakes up.
  const sched_param none{};
  ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  std::unique_lock lock(mutex_);
  for (;;) {
    busy_ = false;
    if (idle()) idle_.notify_all();
    wake_.wait(lock, [this] { return stop_ || !idle(); });
    if (idle()) return;
    busy_ = true;
    lock.unlock();
    serve_read() || serve_removal() || serve_write() || serve_touch();
    lock.lock();
  }
}

void DiskTier::finish(Done done) {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(done));
    if (stop_) return;
  }
  if (on_done_) on_done_();
}

bool DiskTier::serve_read() {
  Read job;
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    if (reads_.empty()) return false;
    job = reads_.front();
    reads_.pop_front();
    if (const auto found = entries_.find(job.id); found != entries_.end()) entry = found->second;
  }
  Done done{.ticket = job.ticket, .kind = job.id.kind, .key = job.id.key};
  if (entry.number == 0) done.error = fmt::format("--cache-dir: {}: is not there", path_of(job.id));
  else if (entry.waiting) done.payload = entry.waiting->payload;
  else done.error = read_file(job.id, entry.hash, &done.payload);
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    ++(done.error.empty() ? counts_.reads : counts_.read_failures);
    gone = !done.error.empty() && current({job.id, entry.number});
    if (gone) forget(entries_.find(job.id));
  }
  if (gone) remove_file({job.id, format_.file_bytes(job.id.kind)});
  finish(std::move(done));
  return true;
}

// Fills *payload with a stored record's, if its header is still the one with `hash`; else says what is wrong.
std::string DiskTier::read_file(RecordId id, PrefixKey hash, std::vector<std::byte>* payload) {
  const std::string path = path_of(id);
  std::vector<std::byte> start(static_cast<size_t>(format_.header_bytes())), rest(static_cast<size_t>(format_.payload_bytes(id.kind)));
  const std::span<std::byte> parts[] = {start, rest};
  if (const int e = files_.read(path, parts)) return fmt::format("--cache-dir: {}: cannot be read: {}", path, describe_file_error(e));
  DiskHeader header;
  if (parse_header(format_, start, format_.file_bytes(id.kind), &header) != Verdict::good || header.hash != hash)
    return fmt::format("--cache-dir: {}: its header was changed or is damaged", path);
  if (hash_of(rest) != header.payload_hash) return fmt::format("--cache-dir: {}: its payload is damaged", path);
  *payload = std::move(rest);
  return {};
}

bool DiskTier::serve_removal() {
  Removal job;
  {
    const std::lock_guard lock(mutex_);
    if (removals_.empty()) return false;
    job = removals_.front();
    removals_.pop_front();
  }
  remove_file(job);
  return true;
}

void DiskTier::remove_file(const Removal& removal) {
  const int e = files_.remove(path_of(removal.id));
  if (e == 0 || e == ENOENT) return;
  const std::lock_guard lock(mutex_);
  ++counts_.removal_failures;
  if (stuck_.emplace(removal.id, removal.bytes).second) stuck_bytes_ += removal.bytes;
}

bool DiskTier::current(const Write& w) const {
  const auto found = entries_.find(w.id);
  return found != entries_.end() && found->second.number == w.number;
}

bool DiskTier::serve_write() {
  Write job;
  std::shared_ptr<Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (writes_.empty()) return false;
    job = writes_.front();
    writes_.pop_front();
    if (!current(job)) return true;  // removed before its turn came
    waiting = entries_.find(job.id)->second.waiting;
  }
  PrefixKey hash;
  bool cancelled = false;
  Done failed{.kind = job.id.kind, .key = job.id.key, .error = write_file(job, *waiting, &hash, &cancelled)};
  const bool renamed = failed.error.empty() && !cancelled;
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    wanted = current(job);
    if (renamed)
      if (const auto stuck = stuck_.find(job.id); stuck != stuck_.end()) {
        stuck_bytes_ -= stuck->second;
        stuck_.erase(stuck);
      }
    if (wanted && renamed) {
      Entry& entry = entries_.find(job.id)->second;
      entry.waiting.reset();
      entry.hash = hash;
      waiting_bytes_ -= format_.payload_bytes(job.id.kind);
      ++counts_.writes;
    } else if (!failed.error.empty()) {
      ++counts_.write_failures;
      if (wanted) forget(entries_.find(job.id));
    }
    if (waiting.use_count() == 1 && waiting->payload.capacity() > spare_.capacity()) {
      spare_.swap(waiting->payload);
      spare_.clear();
    }
  }
  if (renamed && !wanted) remove_file({job.id, format_.file_bytes(job.id.kind)});
  if (wanted && !renamed) finish(std::move(failed));
  return true;
}

// Puts a record into its file: empty, or what went wrong. *cancelled: it was removed meanwhile, and there is no file.
std::string DiskTier::write_file(const Write& w, const Waiting& waiting, PrefixKey* hash, bool* cancelled) {
  const std::string path = path_of(w.id), part = unfinished(path);
  const std::vector<std::byte> header = encode_header(format_, waiting.record, hash_of(waiting.payload));
  *hash = header_hash(header);
  int file = -1;
  int e = files_.create(part, &file);
  if (e == ENOENT) {
    e = files_.make_folder(path.substr(0, path.rfind('/')));
    if (e == 0) e = files_.create(part, &file);
  }
  if (e) return fmt::format("--cache-dir: {}: cannot be made: {}", part, describe_file_error(e));
  e = files_.append(file, header);
  for (std::span<const std::byte> rest = waiting.payload; e == 0 && !rest.empty() && !*cancelled;) {
    const size_t n = std::min(rest.size(), static_cast<size_t>(kPartBytes));
    e = files_.append(file, rest.first(n));
    rest = rest.subspan(n);
    while (serve_read()) {}
    const std::lock_guard lock(mutex_);
    *cancelled = !current(w);
  }
  const int closed = files_.close(file);
  if (e == 0) e = closed;
  if (e == 0 && !*cancelled) e = files_.rename(part, path);
  if (e || *cancelled) files_.remove(part);
  return e ? fmt::format("--cache-dir: {}: cannot be written: {}", path, describe_file_error(e)) : std::string();
}

bool DiskTier::serve_touch() {
  RecordId id;
  {
    const std::lock_guard lock(mutex_);
    if (touches_.empty()) return false;
    id = touches_.front();
    touches_.pop_front();
    const auto found = entries_.find(id);
    if (found == entries_.end() || found->second.waiting) return true;
  }
  files_.touch(path_of(id));
  return true;
}

}  // namespace winnow::cache
