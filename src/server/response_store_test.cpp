#include "server/response_store.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace winnow::server {
namespace {

TEST(ResponseStore, KeepsTheNewestUsedWithinItsNumber) {
  Limits limits;
  limits.responses = 3;
  ResponseStore store(limits);
  for (const char* id : {"a", "b", "c"}) store.put(id, {id, ""});
  EXPECT_EQ(store.find("a")->json, "a");
  store.put("d", {"d", ""});
  EXPECT_FALSE(store.find("b"));
  EXPECT_TRUE(store.find("a") && store.find("c") && store.find("d"));
  store.put("d", {"again", ""});
  EXPECT_EQ(store.size(), 3u);
  EXPECT_EQ(store.find("d")->json, "again");
  EXPECT_TRUE(store.erase("d"));
  EXPECT_FALSE(store.erase("d"));
  EXPECT_EQ(store.size(), 2u);
}

TEST(ResponseStore, WhatWasFoundOutlivesItsEntry) {
  ResponseStore store(Limits{});
  store.put("a", {"text", ""});
  const auto found = store.find("a");
  store.erase("a");
  EXPECT_EQ(found->json, "text");
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, BytesAreBounded) {
  Limits limits;
  limits.responses_bytes = 10000;
  ResponseStore store(limits);
  store.put("huge", {std::string(3000, 'x'), ""});
  EXPECT_EQ(store.size(), 0u);
  std::mt19937 random(5);
  for (int i = 0; i < 1000; ++i) {
    store.put(std::to_string(i), {std::string(random() % 1500, 'x'), std::string(random() % 500, 'y')});
    EXPECT_LE(store.bytes(), limits.responses_bytes);
    EXPECT_TRUE(store.find(std::to_string(i)));
    if (random() % 3 == 0) store.erase(std::to_string(random() % 1000));
  }
  EXPECT_GE(store.size(), 3u);
  for (int i = 0; i < 1000; ++i) store.erase(std::to_string(i));
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace winnow::server
