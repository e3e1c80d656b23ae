// What earlier runs left in the folder of the disk tier: read once, before the tier's thread exists.
#pragma once

#include "cache/disk_files.h"
#include "cache/disk_record.h"

namespace winnow::cache {

struct DiskScan {
  struct Own {
    DiskRecord record;
    PrefixKey hash;  // of header and tokens
  };
  struct Foreign {
    RecordId id;
    int64_t bytes = 0, used_s = 0;
  };
  std::vector<Own> own;          // parents before their children, a page before the snapshot of its key
  std::vector<Foreign> foreign;  // the one used longest ago last
  int64_t damaged = 0;           // deleted: what a crash left of a record
  int64_t orphaned = 0;          // deleted: no way leads to it, because the page before it is gone
  int64_t beyond_limit = 0;      // deleted: the limit is lower than it was
};

// Deletes what a killed run left of records it was writing, and what the counts above name. Files whose names are not ours are
// left alone and not counted. Throws Error naming --cache-dir when a folder cannot be listed.
DiskScan scan_folder(const DiskFiles& files, const std::string& folder, const DiskFormat& format, int64_t limit_bytes);

// Of a file that is being written; it gets its own name when it is whole.
std::string unfinished(const std::string& path);

}  // namespace winnow::cache
