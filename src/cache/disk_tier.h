// The disk tier of the prefix cache: records (token pages and snapshots) as plain files in a folder with a size limit, which outlive the
// process. It knows records, keys and bytes, nothing of the engine: what to keep and what to evict is its caller's to decide.
//
// Crash safety. A record is whole or absent. It is written under another name and renamed when its last byte was handed to the system, so
// a process that dies leaves whole records and unfinished files, which the next start deletes. Nothing is synced: after a power
// cut a renamed file may lack any of its bytes, and the checksums find that. Header and tokens are checked when the folder is scanned,
// the payload when it is read, where also the header must still be the one that was scanned or written. Losing a record costs time, not correctness.
//
// Records of another fingerprint, format version or size are never used. They stay until the limit needs their space, then go before anything
// else does, the one used longest ago first: the next start may be with their model again. What is damaged is deleted.
//
// Threads. The caller's thread owns the public functions; they take the lock for moments and never wait for a file, but for the constructor,
// flush() and the destructor. After the constructor the tier's one thread does all file operations: reads first, also between two parts of a
// long write, then removals, then writes. Plain calls do; the tier has one file in its hands at a time, so io_uring would gain nothing.
//
// Invariants: a key that has() has is answered by read() with the payload that was written under it, or with an error; bytes() <=
// limit_bytes but for files that could not be removed.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "cache/disk_files.h"
#include "cache/disk_record.h"
#include "cache/disk_scan.h"

namespace winnow::cache {

struct DiskOptions {
  std::string folder;  // is made if its parent is there
  int64_t limit_bytes = 0;
  int64_t page_bytes = 0, snapshot_bytes = 0, page_tokens = 0;
  int64_t queue_bytes = 0;              // of payloads waiting to be written; at least one record's
  PrefixKey fingerprint;                // of all that must be equal for a payload to mean the same
  std::function<void()> on_start = {};  // called first by the tier's thread
};

// Throws the Error that a DiskTier on this folder would throw because the folder cannot be used, or is in use.
void check_folder(const DiskFiles& files, const std::string& folder);

class DiskTier {
 public:
  // Makes, locks and scans the folder. Throws Error naming --cache-dir if it cannot be used, if another process uses it, or if the limit
  // is below one page and one snapshot. on_done is called by the tier's thread, without its lock, when poll() has more; it may only wake
  // somebody. It is not called for what is finished after the destructor began.
  explicit DiskTier(const DiskOptions& options, DiskFiles files = real_files(), std::function<void()> on_done = {});
  ~DiskTier();  // finishes queued writes; reads are dropped
  DiskTier(const DiskTier&) = delete;

  // What earlier runs left: parents before their children, a page before the snapshot of its key, each reachable from a root. Once.
  std::vector<DiskRecord> take_found();
  // One line for the log about what the scan did not take, empty if it took everything.
  std::string notice() const;

  bool has(RecordKind kind, PrefixKey key) const;  // stored or queued
  // Would one more stay within limit_bytes? If not the caller removes what it wants least.
  bool room_for(RecordKind kind) const;
  // Copies the payload, whose parts lie one behind the other in the file, and queues it; from now on read() gives it. False, and nothing
  // happens: the queue is full, there is no room_for() it, or the key is there already.
  bool write(DiskRecord record, std::span<const std::byte> payload);
  bool write(DiskRecord record, std::span<const std::span<const std::byte>> parts);
  void remove(RecordKind kind, PrefixKey key);  // also of one still queued; nothing if it is not there
  // Returns a ticket, never 0, of the result. One still queued is answered from memory.
  uint64_t read(RecordKind kind, PrefixKey key);
  void touch(RecordKind kind, PrefixKey key);  // it was used now; may be dropped
  void flush();                                // until everything that was queued is done or failed

  struct Done {
    uint64_t ticket = 0;  // of a read; 0: a write failed
    RecordKind kind = RecordKind::page;
    PrefixKey key;
    std::string error;  // empty: good. Else the record is gone, and what hangs on it is of no use to anybody
    std::vector<std::byte> payload;
  };
  // The next result, in the order in which they were finished. A failed write whose key was written anew since is left out; a failed read
  // has to be answered: then has() tells.
  bool poll(Done* done);

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t bytes() const;  // of the folder's records, foreign ones and queued ones included: sizes of files, without what the file system adds
  struct Counts {
    int64_t pages = 0, snapshots = 0;                                             // there now, queued ones included
    int64_t writes = 0, reads = 0;                                                // that succeeded
    int64_t write_failures = 0, read_failures = 0;                                // reads of what is not there included
    int64_t removal_failures = 0;                                                 // files that stay until the next start
    int64_t found = 0, foreign = 0, damaged = 0, orphaned = 0, beyond_limit = 0;  // at start
  };
  Counts counts() const;

 private:
  struct Waiting {
    DiskRecord record;
    std::vector<std::byte> payload;
  };
  struct Entry {
    uint64_t number = 0;               // tells it from earlier and later ones of its id
    std::shared_ptr<Waiting> waiting;  // until it is stored
    PrefixKey hash;                    // of its header, once it is stored
  };
  struct Read {
    uint64_t ticket = 0;
    RecordId id;
  };
  struct Removal {
    RecordId id;
    int64_t bytes = 0;
  };
  struct Write {
    RecordId id;
    uint64_t number = 0;
  };

  std::string path_of(RecordId id) const { return folder_ + "/" + file_name(id); }
  // With the lock held:
  uint64_t add(RecordId id, Entry entry);  // returns its number
  void forget(std::unordered_map<RecordId, Entry, RecordIdHash>::iterator entry);
  void make_room(int64_t bytes);
  void remove_foreign(RecordId id);
  bool current(const Write& w) const;
  bool idle() const { return reads_.empty() && removals_.empty() && writes_.empty() && touches_.empty() && !busy_; }
  // Without it, by the tier's thread:
  void run();
  bool serve_read();  // false: there is none
  bool serve_removal();
  bool serve_write();
  bool serve_touch();
  void remove_file(const Removal& removal);
  std::string read_file(RecordId id, PrefixKey hash, std::vector<std::byte>* payload);
  std::string write_file(const Write& w, const Waiting& waiting, PrefixKey* hash, bool* cancelled);
  void finish(Done done);

  const std::string folder_;
  const DiskFormat format_;
  const int64_t limit_bytes_, queue_bytes_;
  const DiskFiles files_;
  const std::function<void()> on_done_;
  int lock_ = -1;

  mutable std::mutex mutex_;  // guards all below but thread_
  std::condition_variable wake_, idle_;
  std::unordered_map<RecordId, Entry, RecordIdHash> entries_;
  std::vector<DiskRecord> found_;
  std::unordered_map<RecordId, int64_t, RecordIdHash> foreign_;  // and their bytes
  std::vector<RecordId> foreign_by_age_;                         // the next one to go last; some may be gone from foreign_
  std::unordered_map<RecordId, int64_t, RecordIdHash> stuck_;    // files that could not be removed, and their bytes
  int64_t own_bytes_ = 0, foreign_bytes_ = 0, stuck_bytes_ = 0;  // of entries_, foreign_, stuck_
  int64_t waiting_bytes_ = 0;                                    // payloads of entries_ that wait
  std::deque<Read> reads_;
  std::deque<Removal> removals_;
  std::deque<Write> writes_;  // some may be of entries that are gone
  std::deque<RecordId> touches_;
  std::deque<Done> done_;
  std::vector<std::byte> spare_;  // room of a payload that was written, for the next: the system clears fresh memory on the caller's time
  uint64_t tickets_ = 0, numbers_ = 0;
  bool busy_ = false, stop_ = false;
  Counts counts_;

  std::thread thread_;
};

}  // namespace winnow::cache
