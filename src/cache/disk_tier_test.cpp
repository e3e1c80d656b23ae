#include "cache/disk_tier.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <future>
#include <random>
#include <set>

#include "cache/disk_testing.h"

namespace winnow::cache {
namespace {

using namespace testing;

const Tokens kA{1, 2, 3, 4}, kAB{1, 2, 3, 4, 5, 6, 7, 8}, kABC{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, kX{9, 9, 9, 9};
constexpr RecordKind kPage = RecordKind::page, kSnapshot = RecordKind::snapshot;

bool write(DiskTier& tier, RecordKind kind, const Tokens& path, uint32_t number = 0) {
  return tier.write(record(kind, path), payload(kind == kPage ? 100 : 300, number));
}
std::string name_of(RecordKind kind, const Tokens& path) { return file_name({kind, key_of(path)}); }
std::vector<std::string> names(const std::vector<DiskRecord>& records) {
  std::vector<std::string> n;
  for (const DiskRecord& r : records) n.push_back(file_name({r.kind, r.key}));
  return n;
}

// A hook that stops the tier's thread in the first operation of a name until the test lets it go on.
class Stop {
 public:
  explicit Stop(std::string operation) : operation_(std::move(operation)) {}
  void operator()(const std::string& line) {
    if (!line.starts_with(operation_) || stopped_.exchange(true)) return;
    reached_.set_value();
    go_on_.get_future().wait();
  }
  void wait() { reached_.get_future().wait(); }
  void go_on() { go_on_.set_value(); }

 private:
  const std::string operation_;
  std::atomic<bool> stopped_{false};
  std::promise<void> reached_, go_on_;
};

TEST(DiskTier, GivesBackWhatWasWritten) {
  const Folder folder;
  DiskTier tier(options(folder));
  EXPECT_TRUE(tier.take_found().empty());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  ASSERT_TRUE(write(tier, kSnapshot, kA, 2));
  EXPECT_TRUE(tier.has(kPage, key_of(kA)));
  EXPECT_FALSE(tier.has(kPage, key_of(kX)));
  tier.flush();
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 1));
  EXPECT_EQ(read(tier, kSnapshot, key_of(kA)).payload, payload(300, 2));
  const auto missing = read(tier, kPage, key_of(kX));
  EXPECT_NE(missing.error.find("is not there"), std::string::npos) << missing.error;
  const auto c = tier.counts();
  EXPECT_EQ(c.pages, 1);
  EXPECT_EQ(c.snapshots, 1);
  EXPECT_EQ(c.writes, 2);
  EXPECT_EQ(c.reads, 2);
  EXPECT_EQ(c.read_failures, 1);
  const auto files = folder.files();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(tier.bytes(), static_cast<int64_t>(files.begin()->second.size() + files.rbegin()->second.size()));
}

TEST(DiskTier, APayloadMayComeInParts) {
  const Folder folder;
  DiskTier tier(options(folder));
  const Bytes whole = payload(300, 1);
  const std::span<const std::byte> all(whole), parts[] = {all.first(1), all.subspan(1, 200), {}, all.subspan(201)};
  ASSERT_TRUE(tier.write(record(kSnapshot, kA), parts));
  tier.flush();
  EXPECT_EQ(read(tier, kSnapshot, key_of(kA)).payload, whole);
}

TEST(DiskTier, ARestartFindsParentsFirst) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    for (const auto& path : {kABC, kAB, kX, kA}) {
      ASSERT_TRUE(write(tier, kSnapshot, path, static_cast<uint32_t>(path.size())));
      ASSERT_TRUE(write(tier, kPage, path, static_cast<uint32_t>(path.size()) + 1));
    }
  }
  DiskTier tier(options(folder));
  const auto found = tier.take_found();
  EXPECT_TRUE(tier.take_found().empty()) << "a second time";
  ASSERT_EQ(found.size(), 8u);
  std::set<std::string> before;
  for (const DiskRecord& r : found) {
    const DiskRecord want = record(r.kind, r.depth == 3 ? kABC : r.depth == 2 ? kAB : r.key == key_of(kX) ? kX : kA);
    EXPECT_EQ(r.key, want.key);
    EXPECT_EQ(r.parent, want.parent);
    EXPECT_EQ(r.tokens, want.tokens);
    EXPECT_EQ(r.salt, want.salt);
    EXPECT_EQ(r.folded, want.folded);
    EXPECT_LT(std::abs(r.used_s - time(nullptr)), 100);
    if (r.kind == kSnapshot) {
      EXPECT_TRUE(before.contains(file_name({kPage, r.key})));
    } else {
      EXPECT_TRUE(r.depth == 1 || before.contains(file_name({kPage, r.parent})));
    }
    before.insert(file_name({r.kind, r.key}));
  }
  EXPECT_EQ(read(tier, kPage, key_of(kABC)).payload, payload(100, 13));
  EXPECT_EQ(read(tier, kSnapshot, key_of(kAB)).payload, payload(300, 8));
  EXPECT_EQ(tier.counts().found, 8);
  EXPECT_EQ(tier.notice(), "");
}

TEST(DiskTier, WhatNoWayLeadsToIsDeleted) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    for (const auto& path : {kA, kAB, kABC, kX}) ASSERT_TRUE(write(tier, kPage, path));
    for (const auto& path : {kA, kABC, kX}) ASSERT_TRUE(write(tier, kSnapshot, path));
    // Its parent is there, but at another depth and of another salt.
    DiskRecord odd = record(kPage, {1, 2, 3, 4, 7, 7, 7, 7});
    odd.depth = 3;
    ASSERT_TRUE(tier.write(odd, payload(100, 0)));
    odd = record(kPage, {1, 2, 3, 4, 6, 6, 6, 6});
    odd.salt = 78;
    ASSERT_TRUE(tier.write(odd, payload(100, 0)));
    // Snapshots that say of their page what it does not say of itself.
    const Tokens other_tokens{6, 6, 6, 6}, other_parent{1, 2, 3, 4, 5, 5, 5, 5};
    for (const auto& path : {other_tokens, other_parent}) ASSERT_TRUE(write(tier, kPage, path));
    odd = record(kSnapshot, other_tokens);
    odd.tokens.back() = 7;
    ASSERT_TRUE(tier.write(odd, payload(300, 0)));
    odd = record(kSnapshot, other_parent);
    odd.parent.low ^= 1;
    ASSERT_TRUE(tier.write(odd, payload(300, 0)));
    tier.remove(kPage, key_of(kAB));
    tier.remove(kPage, key_of(kX));
  }
  DiskTier tier(options(folder));
  const auto found = names(tier.take_found());
  EXPECT_EQ(std::set(found.begin(), found.end()),
            (std::set{name_of(kPage, kA), name_of(kSnapshot, kA), name_of(kPage, {6, 6, 6, 6}), name_of(kPage, {1, 2, 3, 4, 5, 5, 5, 5})}));
  EXPECT_EQ(tier.counts().orphaned, 7);
  EXPECT_EQ(folder.files().size(), 4u);
  EXPECT_NE(tier.notice().find("7 records without the page before them"), std::string::npos) << tier.notice();
}

// G-69: the same sizes, another element type: only the fingerprint tells.
TEST(DiskTier, G69AnotherTypeOfTheSameSize) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    ASSERT_TRUE(write(tier, kPage, kA, 1));
    ASSERT_TRUE(write(tier, kSnapshot, kA, 2));
  }
  DiskOptions other = options(folder);
  other.fingerprint.low ^= 1;
  {
    DiskTier tier(other);
    EXPECT_TRUE(tier.take_found().empty());
    EXPECT_FALSE(tier.has(kSnapshot, key_of(kA)));
    EXPECT_NE(read(tier, kSnapshot, key_of(kA)).error, "");
    EXPECT_EQ(tier.counts().foreign, 2);
    EXPECT_NE(tier.notice().find("2 records of another model"), std::string::npos);
    EXPECT_EQ(tier.bytes(), 252 + 452);
    ASSERT_TRUE(write(tier, kPage, kA, 3)) << "in place of the other's";
    tier.flush();
    EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 3));
    EXPECT_EQ(tier.bytes(), 252 + 452);
  }
  DiskTier tier(options(folder));
  EXPECT_TRUE(tier.take_found().empty()) << "the snapshot's page was replaced";
}

TEST(DiskTier, AnotherPageSizeOrVersionIsNeverUsed) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    ASSERT_TRUE(write(tier, kPage, kA, 1));
  }
  for (int what = 0; what < 3; ++what) {
    DiskOptions o = options(folder);
    if (what == 0) o.page_bytes = 99;
    if (what == 1) o.page_tokens = 5;
    if (what == 2) {
      Bytes file = folder.files().begin()->second;
      file[8] = std::byte{2};
      folder.put(name_of(kPage, kA), file);
    }
    DiskTier tier(o);
    EXPECT_TRUE(tier.take_found().empty()) << what;
    EXPECT_EQ(tier.counts().foreign, 1);
    EXPECT_EQ(folder.files().size(), 1u) << "left alone";
  }
}

// G-75: all bytes of a page come back, the index keys behind the latents like the rest. A real page's size, and no round one.
TEST(DiskTier, G75ARestoredPageIsWhole) {
  const Folder folder;
  DiskOptions o = options(folder);
  o.page_bytes = 900'001;
  o.snapshot_bytes = 9'000'003;
  o.limit_bytes = o.queue_bytes = 20'000'000;
  {
    DiskTier tier(o);
    ASSERT_TRUE(tier.write(record(kPage, kA), payload(o.page_bytes, 1)));
    ASSERT_TRUE(tier.write(record(kSnapshot, kA), payload(o.snapshot_bytes, 2)));
  }
  DiskTier tier(o);
  EXPECT_TRUE(read(tier, kPage, key_of(kA)).payload == payload(o.page_bytes, 1));
  EXPECT_TRUE(read(tier, kSnapshot, key_of(kA)).payload == payload(o.snapshot_bytes, 2));
}

// G-82: a kind that is not known is refused, with a checksum that is right.
TEST(DiskTier, G82AnUnknownKindInAFile) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    ASSERT_TRUE(write(tier, kPage, kA, 1));
  }
  Bytes file = folder.files().begin()->second;
  file[12] = std::byte{2};
  const PrefixKey hash = header_hash(std::span(file).first(152));
  for (size_t i = 0; i < 8; ++i) {
    file[120 + i] = static_cast<std::byte>(hash.high >> (8 * i));
    file[128 + i] = static_cast<std::byte>(hash.low >> (8 * i));
  }
  folder.put(name_of(kPage, kA), file);
  DiskTier tier(options(folder));
  EXPECT_TRUE(tier.take_found().empty());
  EXPECT_EQ(tier.counts().foreign, 1);
  EXPECT_EQ(tier.counts().damaged, 0);
}

TEST(DiskTier, StaysWithinItsLimit) {
  const Folder folder;
  DiskOptions o = options(folder);
  o.limit_bytes = 3 * 252 + 452;  // header and tokens are 152
  DiskTier tier(o);
  Tokens path;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(tier.room_for(kPage));
    EXPECT_TRUE(tier.room_for(kSnapshot));
    path.insert(path.end(), 4, i);
    ASSERT_TRUE(write(tier, kPage, path));
  }
  EXPECT_FALSE(tier.room_for(kSnapshot));
  EXPECT_FALSE(write(tier, kSnapshot, path));
  EXPECT_EQ(tier.bytes(), 4 * 252);
  tier.remove(kPage, key_of(path));
  tier.flush();
  EXPECT_EQ(tier.bytes(), 3 * 252);
  EXPECT_EQ(folder.files().size(), 3u);
  EXPECT_TRUE(write(tier, kSnapshot, path));
  EXPECT_FALSE(tier.room_for(kPage));
  EXPECT_EQ(tier.bytes(), o.limit_bytes);
  EXPECT_EQ(tier.counts().pages, 3);
  EXPECT_EQ(tier.counts().snapshots, 1);
}

TEST(DiskTier, ForeignRecordsMakeRoomTheOldestFirst) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    for (const auto& path : {kA, kAB, kABC}) ASSERT_TRUE(write(tier, kPage, path));
  }
  folder.set_age(name_of(kPage, kAB), 300);
  folder.set_age(name_of(kPage, kA), 200);
  folder.set_age(name_of(kPage, kABC), 100);
  DiskOptions o = options(folder);
  o.fingerprint = {8, 8};
  o.limit_bytes = 3 * 252 + 100;
  DiskTier tier(o);
  EXPECT_EQ(tier.bytes(), 3 * 252);
  const auto there = [&] {
    tier.flush();
    std::set<std::string> s;
    for (const auto& [name, bytes] : folder.files()) s.insert(name);
    return s;
  };
  EXPECT_EQ(there().size(), 3u);
  EXPECT_TRUE(tier.room_for(kPage));
  ASSERT_TRUE(write(tier, kPage, kX));
  EXPECT_EQ(there(), (std::set{name_of(kPage, kA), name_of(kPage, kABC), name_of(kPage, kX)}));
  ASSERT_TRUE(write(tier, kPage, {4, 4, 4, 4}));
  EXPECT_EQ(there(), (std::set{name_of(kPage, kABC), name_of(kPage, kX), name_of(kPage, {4, 4, 4, 4})}));
  EXPECT_EQ(tier.bytes(), 3 * 252);
}

TEST(DiskTier, ALowerLimitKeepsWhatWasUsedLast) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    for (const auto& path : {kA, kAB, kABC, kX}) ASSERT_TRUE(write(tier, kPage, path));
  }
  folder.set_age(name_of(kPage, kA), 400);  // the way to a young one
  folder.set_age(name_of(kPage, kAB), 100);
  folder.set_age(name_of(kPage, kABC), 300);
  folder.set_age(name_of(kPage, kX), 200);
  DiskOptions o = options(folder);
  o.limit_bytes = 3 * 252;
  o.snapshot_bytes = 200;  // none is there
  DiskTier tier(o);
  EXPECT_EQ(names(tier.take_found()).size(), 3u);
  EXPECT_TRUE(tier.has(kPage, key_of(kA)) && tier.has(kPage, key_of(kAB)) && tier.has(kPage, key_of(kX)));
  EXPECT_EQ(tier.counts().beyond_limit, 1);
  EXPECT_EQ(folder.files().size(), 3u);
}

// All of one age, as a stop leaves them: pages that no snapshot is behind are of no use to anybody.
TEST(DiskTier, ALowerLimitKeepsSnapshotsAndTheWaysToThem) {
  const Folder folder;
  const Tokens kXY{9, 9, 9, 9, 5, 5, 5, 5};
  {
    DiskTier tier(options(folder));
    for (const auto& path : {kA, kAB, kABC, kX, kXY}) ASSERT_TRUE(write(tier, kPage, path));
    for (const auto& path : {kABC, kXY}) ASSERT_TRUE(write(tier, kSnapshot, path));
  }
  for (const auto& path : {kA, kAB, kABC, kX, kXY}) folder.set_age(name_of(kPage, path), 100);
  for (const auto& path : {kABC, kXY}) folder.set_age(name_of(kSnapshot, path), 100);
  DiskOptions o = options(folder);
  o.limit_bytes = 3 * 252 + 452;
  DiskTier tier(o);
  EXPECT_TRUE(tier.has(kPage, key_of(kX)) && tier.has(kPage, key_of(kXY)) && tier.has(kSnapshot, key_of(kXY)));
  EXPECT_TRUE(tier.has(kPage, key_of(kA))) << "there is room for one more";
  EXPECT_EQ(tier.counts().beyond_limit, 3);
  EXPECT_EQ(tier.bytes(), o.limit_bytes);
}

TEST(DiskTier, AKeyIsWrittenOnce) {
  const Folder folder;
  DiskTier tier(options(folder));
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  EXPECT_FALSE(write(tier, kPage, kA, 2));
  tier.flush();
  EXPECT_FALSE(write(tier, kPage, kA, 3));
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 1));
  tier.remove(kPage, key_of(kA));
  tier.remove(kPage, key_of(kA));
  EXPECT_EQ(tier.bytes(), 0);
  ASSERT_TRUE(write(tier, kPage, kA, 4));
  tier.flush();
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 4));
}

// While a write stands still: what is queued is read from memory, removed from memory, and bounded.
TEST(DiskTier, WhatIsQueuedIsThere) {
  const Folder folder;
  Stop stop("create");
  DiskFaults faults;
  faults.before = std::ref(stop);
  DiskOptions o = options(folder);
  o.queue_bytes = 350;
  DiskTier tier(o, faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  stop.wait();
  ASSERT_TRUE(write(tier, kPage, kAB, 2));
  ASSERT_TRUE(write(tier, kPage, kX, 3));
  EXPECT_FALSE(write(tier, kPage, kABC, 4)) << "the queue is full";
  EXPECT_FALSE(tier.has(kPage, key_of(kABC)));
  tier.remove(kPage, key_of(kX));
  EXPECT_TRUE(write(tier, kPage, kABC, 4));
  const uint64_t first = tier.read(kPage, key_of(kA)), second = tier.read(kPage, key_of(kAB));
  EXPECT_EQ(tier.bytes(), 3 * 252);
  stop.go_on();
  tier.flush();
  DiskTier::Done done;
  ASSERT_TRUE(tier.poll(&done));
  EXPECT_EQ(done.ticket, first);
  EXPECT_EQ(done.payload, payload(100, 1));
  ASSERT_TRUE(tier.poll(&done));
  EXPECT_EQ(done.ticket, second);
  EXPECT_EQ(done.payload, payload(100, 2));
  EXPECT_FALSE(tier.poll(&done));
  const auto files = folder.files();
  EXPECT_EQ(files.size(), 3u);
  EXPECT_FALSE(files.contains(name_of(kPage, kX)));
  const auto log = faults.log();
  EXPECT_EQ(std::ranges::count_if(log, [](const auto& line) { return line.starts_with("read "); }), 0);
}

// A read waits neither for the writes before it nor for the rest of a long one that has begun.
TEST(DiskTier, ReadsGoBeforeWrites) {
  const Folder folder;
  Stop stop("append");
  DiskFaults faults;
  DiskOptions o = options(folder);
  o.snapshot_bytes = 9 << 20;
  o.limit_bytes = o.queue_bytes = 64 << 20;
  {
    DiskTier tier(o);
    ASSERT_TRUE(write(tier, kPage, kA, 1));
  }
  faults.before = std::ref(stop);
  DiskTier tier(o, faults.files());
  const size_t start = faults.log().size();
  ASSERT_TRUE(tier.write(record(kSnapshot, kA), Bytes(static_cast<size_t>(o.snapshot_bytes))));
  stop.wait();
  ASSERT_TRUE(write(tier, kPage, kX, 2));
  tier.read(kPage, key_of(kA));
  tier.remove(kPage, key_of(kX));
  ASSERT_TRUE(write(tier, kPage, kAB, 2));
  stop.go_on();
  tier.flush();
  const auto log = faults.log();
  const auto at = [&](const std::string& what) {
    return std::find_if(log.begin() + static_cast<int64_t>(start), log.end(), [&](const auto& l) { return l.starts_with(what); });
  };
  ASSERT_NE(at("read"), log.end());
  EXPECT_LT(at("read"), at("rename"));
  DiskTier::Done done;
  ASSERT_TRUE(tier.poll(&done));
  EXPECT_EQ(done.payload, payload(100, 1));
}

TEST(DiskTier, AReadGoesBeforeAWriteThatWasQueuedFirst) {
  const Folder folder;
  Stop stop("rename");
  DiskFaults faults;
  faults.before = std::ref(stop);
  DiskTier tier(options(folder), faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  stop.wait();
  ASSERT_TRUE(write(tier, kPage, kX, 2));
  const uint64_t ticket = tier.read(kPage, key_of(kA));
  stop.go_on();
  EXPECT_EQ(wait_for(tier, ticket).payload, payload(100, 1));
  const auto log = faults.log();
  const auto read = std::ranges::find_if(log, [](const auto& l) { return l.starts_with("read"); });
  ASSERT_NE(read, log.end());
  EXPECT_EQ(std::count_if(log.begin(), read, [](const auto& l) { return l.starts_with("rename"); }), 1);
}

TEST(DiskTier, ARemovedRecordIsNotWrittenOn) {
  const Folder folder;
  Stop stop("append");
  DiskFaults faults;
  faults.before = std::ref(stop);
  DiskTier tier(options(folder), faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  stop.wait();
  tier.remove(kPage, key_of(kA));
  ASSERT_TRUE(write(tier, kPage, kA, 2)) << "anew, behind the one that is being written";
  const uint64_t ticket = tier.read(kPage, key_of(kA));
  stop.go_on();
  EXPECT_EQ(wait_for(tier, ticket).payload, payload(100, 2));
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 2));
  EXPECT_EQ(tier.counts().writes, 1);
  EXPECT_EQ(folder.files().size(), 1u);
  EXPECT_EQ(tier.bytes(), 252);
}

TEST(DiskTier, ARecordRemovedInTheLastMomentIsNotThere) {
  const Folder folder;
  Stop stop("rename");
  DiskFaults faults;
  faults.before = std::ref(stop);
  DiskTier tier(options(folder), faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  stop.wait();
  tier.remove(kPage, key_of(kA));
  stop.go_on();
  tier.flush();
  EXPECT_TRUE(folder.files().empty());
  EXPECT_EQ(tier.bytes(), 0);
  DiskTier::Done done;
  EXPECT_FALSE(tier.poll(&done)) << "nothing failed";
}

TEST(DiskTier, OneProcessAFolder) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    try {
      DiskTier second(options(folder));
      FAIL() << "a second tier in the same folder";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("--cache-dir: " + folder.path() + " is in use by another winnow"), std::string::npos) << e.what();
    }
  }
  DiskTier again(options(folder));
}

TEST(DiskTier, AFolderThatCannotBeUsedIsNamed) {
  const Folder folder;
  const auto refusal = [&](const std::string& path, int64_t limit = 1 << 20, DiskFiles files = real_files()) -> std::string {
    DiskOptions o = options(folder);
    o.folder = path;
    o.limit_bytes = limit;
    try {
      const DiskTier tier(o, std::move(files));
    } catch (const Error& e) { return e.what(); }
    return "none";
  };
  folder.put("file", {});
  for (const std::string& path : {folder.path() + "/file", folder.path() + "/none/below", std::string(), std::string("/proc/winnow")}) {
    const std::string message = refusal(path);
    EXPECT_TRUE(message.starts_with("--cache-dir: ")) << message;
    EXPECT_NE(message.find("; name a folder"), std::string::npos) << message;
  }
  EXPECT_NE(refusal(folder.path(), 703).find("does not hold one page and one snapshot, 704 bytes"), std::string::npos);
  EXPECT_EQ(refusal(folder.path(), 704), "none");
  DiskFiles unreadable = real_files();
  unreadable.list = [](const std::string&, auto*) { return EACCES; };
  EXPECT_NE(refusal(folder.path(), 1 << 20, unreadable).find("cannot be listed: Permission denied"), std::string::npos);
  EXPECT_EQ(refusal(folder.path()), "none") << "the lock was given back";
}

// Prompts can be read out of records.
TEST(DiskTier, OnlyTheOwnerMayRead) {
  const Folder folder;
  const mode_t before = ::umask(0);
  {
    DiskTier tier(options(folder));
    ASSERT_TRUE(write(tier, kPage, kA));
  }
  ::umask(before);
  const auto mode = [](const std::string& path) {
    struct stat s{};
    EXPECT_EQ(::stat(path.c_str(), &s), 0) << path;
    return s.st_mode & 07777;
  };
  EXPECT_EQ(mode(folder.path()), 0700u);
  EXPECT_EQ(mode(folder.path() + "/lock"), 0600u);
  const std::string file = folder.path() + "/" + name_of(kPage, kA);
  EXPECT_EQ(mode(file), 0600u);
  EXPECT_EQ(mode(file.substr(0, file.rfind('/'))), 0700u);
}

TEST(DiskTier, WhatIsNotOursStays) {
  const Folder folder;
  const Bytes text = payload(50, 1);
  const std::string page = name_of(kPage, kA), sub = page.substr(0, 3);
  for (const std::string& name : {std::string("notes.txt"), sub + "notes.page", sub + "x.part", "zz/" + page.substr(3), "longer/" + page.substr(3)})
    folder.put(name, text);
  folder.put(page + ".part", text);
  std::filesystem::create_symlink(folder.path() + "/notes.txt", folder.path() + "/" + name_of(kSnapshot, kA));
  std::filesystem::create_directories(folder.path() + "/" + sub + page.substr(3, 32) + ".snapshot.part");
  {
    DiskTier tier(options(folder));
    EXPECT_TRUE(tier.take_found().empty());
    EXPECT_EQ(tier.counts().foreign + tier.counts().damaged, 0);
    EXPECT_EQ(tier.bytes(), 0);
  }
  const auto files = folder.files();
  EXPECT_EQ(files.size(), 5u) << "but the unfinished one";
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() + "/" + name_of(kSnapshot, kA)));
  EXPECT_FALSE(files.contains(page + ".part"));
  EXPECT_EQ(files.at("notes.txt"), text);
}

TEST(DiskTier, WakesWhoWaitsForResults) {
  const Folder folder;
  std::promise<void> woken;
  std::atomic<int> times{0};
  DiskTier tier(options(folder), real_files(), [&] {
    if (times++ == 0) woken.set_value();
  });
  ASSERT_TRUE(write(tier, kPage, kA));
  tier.flush();
  EXPECT_EQ(times, 0) << "a write that succeeds is no news";
  const uint64_t ticket = tier.read(kPage, key_of(kA));
  ASSERT_EQ(woken.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  DiskTier::Done done;
  ASSERT_TRUE(tier.poll(&done));
  EXPECT_EQ(done.ticket, ticket);
}

TEST(DiskTier, ATouchOutlivesTheProcess) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    ASSERT_TRUE(write(tier, kPage, kA));
    ASSERT_TRUE(write(tier, kPage, kX));
    tier.flush();
    folder.set_age(name_of(kPage, kA), 1000);
    folder.set_age(name_of(kPage, kX), 1000);
    tier.touch(kPage, key_of(kA));
    tier.touch(kPage, key_of(kAB));  // is not there
    tier.flush();
  }
  DiskTier tier(options(folder));
  for (const DiskRecord& r : tier.take_found()) EXPECT_NEAR(static_cast<double>(time(nullptr) - r.used_s), r.key == key_of(kA) ? 0 : 1000, 100);
}

// Random operations from one thread while the tier's works: a result is what its key held when it was asked for or later, or it
// was removed in between.
TEST(DiskTier, AgreesWithAMap) {
  const Folder folder;
  std::mt19937_64 random(5);
  const auto below = [&](uint64_t n) { return random() % n; };
  DiskOptions o = options(folder);
  o.limit_bytes = 12 * 252;
  o.queue_bytes = 500;
  std::map<PrefixKey, uint32_t> held;                                       // the number of the payload that a key has
  std::map<PrefixKey, uint32_t> removed;                                    // the highest number that was removed
  std::map<uint64_t, std::pair<PrefixKey, std::optional<uint32_t>>> asked;  // by ticket: what was held then
  uint32_t number = 0;
  int64_t good = 0;
  for (int run = 0; run < 8; ++run) {
    DiskTier tier(o);
    ASSERT_EQ(tier.take_found().size(), held.size());
    for (int i = 0; i < 800; ++i) {
      const Tokens path(4, static_cast<int32_t>(below(16)));
      const PrefixKey key = key_of(path);
      switch (below(8)) {
        case 0:
        case 1:
          if (write(tier, kPage, path, number + 1)) held[key] = ++number;
          break;
        case 2:
          tier.remove(kPage, key);
          if (held.contains(key)) removed[key] = held[key];
          held.erase(key);
          break;
        case 3: tier.touch(kPage, key); break;
        case 4: ASSERT_LE(tier.bytes(), o.limit_bytes); break;
        default: asked[tier.read(kPage, key)] = {key, held.contains(key) ? std::optional(held[key]) : std::nullopt};
      }
      ASSERT_EQ(tier.has(kPage, key), held.contains(key));
      if (below(50) == 0) tier.flush();
      DiskTier::Done done;
      while (tier.poll(&done)) {
        ASSERT_NE(done.ticket, 0u) << done.error;
        const auto [k, then] = asked.at(done.ticket);
        ASSERT_EQ(k, done.key);
        if (!done.error.empty()) {
          ASSERT_TRUE(!then || removed[k] >= *then) << done.error;
          continue;
        }
        ++good;
        bool same = then && done.payload == payload(100, *then);
        for (uint32_t n = then.value_or(0) + 1; n <= number && !same; ++n) same = done.payload == payload(100, n);
        ASSERT_TRUE(same);
      }
    }
    asked.clear();
  }
  EXPECT_GT(good, 1000);
}

}  // namespace
}  // namespace winnow::cache
