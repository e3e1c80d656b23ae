#include <gtest/gtest.h>

#include <utility>

#include "device/device.h"

namespace winnow::device {
namespace {

TEST(CpuDevice, APlanNeedsNoMemory) {
  const auto device = make_cpu({.threads = 1, .backend = Backend::ref, .plan_only = true});
  const int64_t more = 4 * device->caps().memory_bytes;
  const Buffer a = device->allocate("weights", more), b = device->allocate("weights", 100);
  EXPECT_TRUE(a.data() && b.data());
  ASSERT_EQ(device->plan().size(), 1u);
  EXPECT_EQ(device->plan()[0].bytes, more + 100);
  EXPECT_TRUE(device->caps().plans_only);
}

TEST(CpuDevice, ATouchedPlanIsDeath) {
  const auto device = make_cpu({.threads = 1, .backend = Backend::ref, .plan_only = true});
  const Buffer a = device->allocate("weights", 100);
  EXPECT_DEATH(*a.data() = std::byte{1}, "");
}

TEST(CpuDevice, WithoutAPlanWhatDoesNotFitIsRefused) {
  const auto device = make_cpu({.threads = 1, .backend = Backend::ref});
  EXPECT_FALSE(device->caps().plans_only);
  EXPECT_THROW(std::ignore = device->allocate("weights", 4 * device->caps().memory_bytes), Error);
  const Buffer a = device->allocate("weights", 100);
  EXPECT_EQ(*a.data(), std::byte{0});
}

}  // namespace
}  // namespace winnow::device
