// What a crash, a full or a failing disk leaves: whatever happens to files, a read gives what was written under its key or an error.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "cache/disk_testing.h"

namespace winnow::cache {
namespace {

using namespace testing;

constexpr RecordKind kPage = RecordKind::page, kSnapshot = RecordKind::snapshot;
const Tokens kA{1, 2, 3, 4}, kAB{1, 2, 3, 4, 5, 6, 7, 8}, kX{9, 9, 9, 9};

int64_t size_of(RecordKind kind) { return kind == kPage ? 100 : 300; }
bool write(DiskTier& tier, RecordKind kind, const Tokens& path, uint32_t number) {
  return tier.write(record(kind, path), payload(size_of(kind), number));
}

// Everything that was ever written, by file name.
using Written = std::map<std::string, std::vector<uint32_t>>;

struct Tally {
  int64_t good = 0, errors = 0, damaged = 0;
  std::set<std::string> names;  // of the good ones
};

// Starts on the folder and reads everything that is found.
Tally expect_nothing_wrong(const Folder& folder, const Written& written, const std::string& what) {
  Tally tally;
  DiskTier tier(options(folder));
  tally.damaged = tier.counts().damaged;
  std::set<std::string> before;
  for (const DiskRecord& r : tier.take_found()) {
    const std::string name = file_name({r.kind, r.key});
    EXPECT_TRUE(r.kind == kSnapshot ? before.contains(file_name({kPage, r.key})) : r.depth == 1 || before.contains(file_name({kPage, r.parent})))
        << what << ": a record that hangs on nothing";
    before.insert(name);
    const auto done = read(tier, r.kind, r.key);
    if (!done.error.empty()) {
      EXPECT_TRUE(done.payload.empty());
      EXPECT_FALSE(tier.has(r.kind, r.key)) << what << ": is still there";
      ++tally.errors;
      continue;
    }
    ++tally.good;
    tally.names.insert(name);
    const auto numbers = written.find(name);
    if (numbers == written.end()) {
      ADD_FAILURE() << what << ": " << name << " was never written";
      continue;
    }
    EXPECT_TRUE(std::ranges::any_of(numbers->second, [&](uint32_t n) { return done.payload == payload(size_of(r.kind), n); }))
        << what << ": a wrong payload of " << name;
  }
  tier.flush();
  int64_t bytes = 0;
  for (const auto& [name, content] : folder.files()) {
    EXPECT_FALSE(name.ends_with(".part")) << what;
    bytes += static_cast<int64_t>(content.size());
  }
  EXPECT_EQ(tier.bytes(), bytes) << what;
  return tally;
}

// Writes and removals of a small tree of prefixes. The same seed does the same, as far as the tier lets it.
void work(DiskTier& tier, uint64_t seed, Written* written) {
  std::mt19937_64 random(seed);
  uint32_t number = static_cast<uint32_t>(seed) * 1000;
  for (int i = 0; i < 24; ++i) {
    Tokens path;
    for (uint64_t depth = 1 + random() % 3; depth-- > 0;) path.insert(path.end(), 4, static_cast<int32_t>(random() % 2));
    const RecordKind kind = random() % 3 == 0 ? kSnapshot : kPage;
    if (random() % 4 == 0) {
      tier.remove(kind, key_of(path));
    } else {
      (*written)[file_name({kind, key_of(path)})].push_back(++number);  // before it can be on the disk
      write(tier, kind, path, number);
    }
    if (random() % 8 == 0) tier.touch(kind, key_of(path));
    if (random() % 6 == 0) tier.flush();
  }
}

TEST(DiskCrash, KilledInAnyOperation) {
  Tally all;
  for (uint64_t seed : {1, 2}) {
    int64_t k = 0;
    for (bool died = true; died; ++k) {
      const Folder folder(true);
      Written written;
      DiskFaults faults;
      faults.killed_at = k;
      try {
        DiskTier tier(options(folder), faults.files());
        work(tier, seed, &written);
      } catch (const Error&) { EXPECT_LT(k, 4) << "killed at the start"; }
      died = faults.operations > k;
      if (!std::filesystem::exists(folder.path())) continue;
      const Tally tally = expect_nothing_wrong(folder, written, fmt::format("seed {}, killed in operation {}", seed, k));
      EXPECT_EQ(tally.errors, 0) << "the page cache outlives the process, so no record is half there";
      EXPECT_EQ(tally.damaged, 0) << "not even under its name";
      all.good += tally.good;
    }
    EXPECT_GT(k, 60);
  }
  EXPECT_GT(all.good, 200);
}

// The start itself deletes and may be killed; so may a run upon what an earlier one left.
TEST(DiskCrash, KilledAgainWhileItMends) {
  Tally all;
  int64_t k = 0;
  for (bool died = true; died; ++k) {
    const Folder folder(true);
    Written written;
    {
      DiskTier tier(options(folder));
      work(tier, 3, &written);
      for (const auto& path : {kA, kAB, kX}) {
        write(tier, kPage, path, 5);
        written[file_name({kPage, key_of(path)})].push_back(5);
      }
    }
    std::filesystem::remove(folder.path() + "/" + file_name({kPage, key_of(kA)}));  // orphans
    folder.put(file_name({kPage, key_of(kX)}), payload(252, 1));                    // damaged
    folder.put(file_name({kSnapshot, key_of(kX)}) + ".part", payload(100, 1));      // unfinished
    DiskFaults faults;
    faults.killed_at = k;
    try {
      DiskTier tier(options(folder), faults.files());
      work(tier, 4, &written);
    } catch (const Error&) {}
    died = faults.operations > k;
    const Tally tally = expect_nothing_wrong(folder, written, fmt::format("killed again in operation {}", k));
    EXPECT_EQ(tally.errors, 0) << k;
    all.good += tally.good;
  }
  EXPECT_GT(k, 60);
  EXPECT_GT(all.good, 200);
}

// One page and one snapshot, each file spoiled in every way of a kind by `spoil`, which returns false when it has no more.
void spoil_each(const std::function<bool(size_t, Bytes*)>& spoil) {
  const Folder folder(true);
  Written written;
  {
    DiskTier tier(options(folder));
    ASSERT_TRUE(write(tier, kPage, kA, 1));
    ASSERT_TRUE(write(tier, kSnapshot, kA, 2));
  }
  written[file_name({kPage, key_of(kA)})] = {1};
  written[file_name({kSnapshot, key_of(kA)})] = {2};
  const auto files = folder.files();
  for (const auto& [name, good] : files) {
    const bool page = name.ends_with(".page");
    for (size_t i = 0;; ++i) {
      Bytes bad = good;
      if (!spoil(i, &bad)) break;
      for (const auto& [n, content] : files) folder.put(n, content);
      folder.put(name, bad);
      const Tally tally = expect_nothing_wrong(folder, written, fmt::format("{} spoiled at {}", name, i));
      EXPECT_FALSE(tally.names.contains(name)) << "at " << i << ": the spoiled one was given";
      EXPECT_TRUE(page || tally.good == 1) << "the page is good";
    }
  }
}

TEST(DiskCrash, AnyByteFlipped) {
  spoil_each([](size_t i, Bytes* file) {
    if (i >= file->size()) return false;
    (*file)[i] ^= std::byte{i % 2 ? uint8_t{1} : uint8_t{0xff}};
    return true;
  });
}

TEST(DiskCrash, TornAtAnyLength) {
  spoil_each([](size_t i, Bytes* file) {
    if (i >= file->size()) return false;
    file->resize(i);
    return true;
  });
}

// What a file system may leave of a file that was renamed before its bytes reached the disk.
TEST(DiskCrash, ZeroesFromAnyByteOn) {
  spoil_each([](size_t i, Bytes* file) {
    if (i >= file->size()) return false;
    const Bytes good = *file;
    std::fill(file->begin() + static_cast<int64_t>(i), file->end(), std::byte{0});
    if (*file == good) file->push_back({});
    return true;
  });
}

TEST(DiskCrash, AFileThatChangesBetweenScanAndRead) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    for (const auto& path : {kA, kX}) ASSERT_TRUE(write(tier, kPage, path, 1));
    ASSERT_TRUE(write(tier, kSnapshot, kA, 2));
  }
  DiskTier tier(options(folder));
  const std::string a = file_name({kPage, key_of(kA)}), x = file_name({kPage, key_of(kX)}), s = file_name({kSnapshot, key_of(kA)});
  Bytes flipped = folder.files().at(s);
  flipped.back() ^= std::byte{4};
  folder.put(a, folder.files().at(x));  // whole and ours, but another
  folder.put(s, flipped);
  std::filesystem::remove(folder.path() + "/" + x);
  EXPECT_NE(read(tier, kPage, key_of(kA)).error.find("its header was changed"), std::string::npos);
  EXPECT_NE(read(tier, kPage, key_of(kX)).error.find("No such file"), std::string::npos);
  EXPECT_NE(read(tier, kSnapshot, key_of(kA)).error.find("its payload is damaged"), std::string::npos);
  EXPECT_EQ(tier.bytes(), 0);
  EXPECT_TRUE(folder.files().empty()) << "what is damaged was deleted";
  EXPECT_EQ(tier.counts().read_failures, 3);
  ASSERT_TRUE(write(tier, kPage, kA, 7)) << "and can be written again";
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 7));
}

// The failure is of the record that was read, not of the one that took its place meanwhile.
TEST(DiskCrash, AReadFailsWhileItsRecordIsWrittenAnew) {
  const Folder folder;
  DiskFaults faults;
  std::function<void()> once;
  faults.before = [&](const std::string& operation) {
    if (operation.starts_with("read") && once) std::exchange(once, {})();
  };
  DiskTier tier(options(folder), faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  tier.flush();
  faults.reads_fail = true;
  once = [&] {
    tier.remove(kPage, key_of(kA));
    EXPECT_TRUE(write(tier, kPage, kA, 2));
  };
  EXPECT_NE(read(tier, kPage, key_of(kA)).error, "");
  faults.reads_fail = false;
  EXPECT_TRUE(tier.has(kPage, key_of(kA)));
  EXPECT_EQ(tier.bytes(), 252);
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 2));
}

TEST(DiskCrash, ARecordUnderAnotherName) {
  const Folder folder;
  {
    DiskTier tier(options(folder));
    ASSERT_TRUE(write(tier, kPage, kA, 1));
  }
  folder.put(file_name({kPage, key_of(kX)}), folder.files().begin()->second);
  DiskTier tier(options(folder));
  EXPECT_EQ(tier.take_found().size(), 1u);
  EXPECT_FALSE(tier.has(kPage, key_of(kX)));
  EXPECT_EQ(tier.counts().damaged, 1);
}

TEST(DiskCrash, AFullDisk) {
  const Folder folder;
  DiskFaults faults;
  DiskTier tier(options(folder), faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  tier.flush();
  for (int64_t space : {0, 100, 152, 200, 251}) {
    faults.space_bytes = space;
    ASSERT_TRUE(write(tier, kPage, kX, 2));
    tier.flush();
    DiskTier::Done done;
    ASSERT_TRUE(tier.poll(&done));
    EXPECT_EQ(done.ticket, 0u);
    EXPECT_EQ(done.key, key_of(kX));
    EXPECT_NE(done.error.find("No space left"), std::string::npos) << done.error;
    EXPECT_FALSE(tier.has(kPage, key_of(kX)));
    EXPECT_EQ(tier.bytes(), 252);
    EXPECT_EQ(folder.files().size(), 1u) << "nothing half is left";
  }
  EXPECT_EQ(tier.counts().write_failures, 5);
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 1));
  faults.space_bytes = 252;
  ASSERT_TRUE(write(tier, kPage, kX, 3));
  tier.flush();
  EXPECT_EQ(read(tier, kPage, key_of(kX)).payload, payload(100, 3));
}

TEST(DiskCrash, AFailureThatNobodyHeardOfIsForgottenWithTheNextWrite) {
  const Folder folder;
  DiskFaults faults;
  DiskTier tier(options(folder), faults.files());
  faults.space_bytes = 0;
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  ASSERT_TRUE(write(tier, kPage, kX, 1));
  tier.flush();
  faults.space_bytes = 1000;
  ASSERT_TRUE(write(tier, kPage, kA, 2));
  DiskTier::Done done;
  ASSERT_TRUE(tier.poll(&done));
  EXPECT_EQ(done.key, key_of(kX));
  EXPECT_FALSE(tier.poll(&done)) << "the one that is there is not reported lost";
}

TEST(DiskCrash, ADiskThatLosesHalfOfAWrite) {
  const Folder folder;
  DiskFaults faults;
  faults.lies_about_appends = true;
  {
    DiskTier tier(options(folder), faults.files());
    ASSERT_TRUE(write(tier, kPage, kA, 1));
    ASSERT_TRUE(write(tier, kPage, kX, 1));
    tier.flush();
    EXPECT_NE(read(tier, kPage, key_of(kA)).error.find("too short"), std::string::npos);
  }
  DiskTier tier(options(folder));
  EXPECT_TRUE(tier.take_found().empty());
  EXPECT_EQ(tier.counts().damaged, 1);
  EXPECT_TRUE(folder.files().empty());
}

TEST(DiskCrash, ADiskThatCannotBeRead) {
  const Folder folder;
  DiskFaults faults;
  DiskTier tier(options(folder), faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  tier.flush();
  faults.reads_fail = true;
  const auto done = read(tier, kPage, key_of(kA));
  EXPECT_NE(done.error.find("Input/output error"), std::string::npos) << done.error;
  EXPECT_FALSE(tier.has(kPage, key_of(kA)));
  faults.reads_fail = false;
  ASSERT_TRUE(write(tier, kPage, kA, 2));
  tier.flush();
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 2));
}

// What cannot be removed goes on counting, so that the folder does not outgrow its limit.
TEST(DiskCrash, AFileThatCannotBeRemoved) {
  const Folder folder;
  DiskFaults faults;
  DiskOptions o = options(folder);
  o.limit_bytes = 252 + 452;
  DiskTier tier(o, faults.files());
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  ASSERT_TRUE(write(tier, kPage, kX, 1));
  tier.flush();
  faults.removals_fail = true;
  tier.remove(kPage, key_of(kA));
  tier.flush();
  EXPECT_EQ(tier.bytes(), 504);
  EXPECT_EQ(tier.counts().removal_failures, 1);
  EXPECT_FALSE(tier.room_for(kSnapshot));
  EXPECT_NE(read(tier, kPage, key_of(kA)).error, "");
  EXPECT_FALSE(write(tier, kPage, kA, 2));
  faults.removals_fail = false;
  tier.remove(kPage, key_of(kX));
  ASSERT_TRUE(write(tier, kPage, kA, 2)) << "over the file that stayed";
  tier.flush();
  EXPECT_EQ(tier.bytes(), 252);
  EXPECT_EQ(folder.files().size(), 1u);
  EXPECT_EQ(read(tier, kPage, key_of(kA)).payload, payload(100, 2));
}

TEST(DiskCrash, AFolderThatWasDeleted) {
  const Folder folder;
  DiskTier tier(options(folder));
  ASSERT_TRUE(write(tier, kPage, kA, 1));
  tier.flush();
  std::filesystem::remove_all(folder.path());
  EXPECT_NE(read(tier, kPage, key_of(kA)).error, "");
  ASSERT_TRUE(write(tier, kPage, kX, 1));
  tier.flush();
  DiskTier::Done done;
  ASSERT_TRUE(tier.poll(&done));
  EXPECT_NE(done.error.find("cannot be made"), std::string::npos);
}

}  // namespace
}  // namespace winnow::cache
