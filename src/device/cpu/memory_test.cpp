#include "device/cpu/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "device/device.h"

namespace winnow::device {
namespace {

namespace fs = std::filesystem;

class Root {
 public:
  Root() : path_(fs::temp_directory_path() / ("winnow_memory_test_" + std::to_string(::getpid()))) {}
  ~Root() { fs::remove_all(path_); }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  std::string string() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(Memory, IsWhatTheKernelSaysIsAvailable) {
  Root root;
  root.put("proc/meminfo", "MemTotal:       24684092 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n");
  EXPECT_EQ(available_memory(root.string()), int64_t{2000000} * 1024);
}

TEST(Memory, IsNoMoreThanTheGroupsLeave) {
  Root root;
  root.put("proc/meminfo", "MemAvailable:    8000000 kB\n");
  root.put("proc/self/cgroup", "1:name=systemd:/x\n0::/jobs/mine\n");
  root.put("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  EXPECT_EQ(available_memory(root.string()), int64_t{8000000} * 1024);
  root.put("sys/fs/cgroup/jobs/memory.max", "5000000000\n");
  root.put("sys/fs/cgroup/jobs/memory.current", "3000000000\n");
  EXPECT_EQ(available_memory(root.string()), 2000000000);
  root.put("sys/fs/cgroup/jobs/memory.stat", "anon 2000000000\ninactive_file 700000000\nactive_file 300000000\n");
  EXPECT_EQ(available_memory(root.string()), 3000000000) << "page cache is given back";
  root.put("sys/fs/cgroup/jobs/mine/memory.max", "100000\n");
  root.put("sys/fs/cgroup/jobs/mine/memory.current", "200000\n");
  EXPECT_EQ(available_memory(root.string()), 0);
}

TEST(Memory, WhatCannotBeReadSetsNoLimit) {
  Root root;
  EXPECT_EQ(available_memory(root.string()), std::numeric_limits<int64_t>::max());
  EXPECT_GT(available_memory(), 0);
}

TEST(Memory, ADeviceRefusesMoreThanWasFree) {
  const auto device = make_cpu({.threads = 1});
  const int64_t free = device->caps().free_bytes;
  EXPECT_LE(free, device->caps().memory_bytes);
  {
    const Buffer little = device->allocate("a little", 1 << 20);
    EXPECT_EQ(device->plan().back().bytes, 1 << 20);
    try {
      const Buffer rest = device->allocate("everything", free);
      FAIL() << "no error";
    } catch (const Error& e) { EXPECT_NE(std::string(e.what()).find("everything needs"), std::string::npos) << e.what(); }
  }
  EXPECT_EQ(device->plan().back().bytes, 0) << "what is released leaves the plan";
  EXPECT_NO_THROW(device->allocate("everything", free));
}

}  // namespace
}  // namespace winnow::device
