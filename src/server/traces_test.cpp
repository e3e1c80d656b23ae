#include "server/traces.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <boost/json.hpp>

namespace winnow::server {
namespace {

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kSpan = "b7ad6b7169203331";

TEST(Traces, TraceparentIsReadOrIgnored) {
  const std::optional<TraceParent> p = parse_traceparent("00-" + kTrace + "-" + kSpan + "-01");
  ASSERT_TRUE(p);
  EXPECT_EQ(p->trace, kTrace);
  EXPECT_EQ(p->span, kSpan);
  EXPECT_TRUE(p->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + kTrace + "-" + kSpan + "-02")->sampled);
  EXPECT_TRUE(parse_traceparent("cc-" + kTrace + "-" + kSpan + "-0b-more")->sampled) << "a later version";
  const std::string zeros(32, '0');
  for (const std::string& wrong :
       {std::string(), std::string("00"), "ff-" + kTrace + "-" + kSpan + "-01", "00-" + zeros + "-" + kSpan + "-01",
        "00-" + kTrace + "-" + zeros.substr(16) + "-01", "00-" + kTrace + "-" + kSpan + "-01-more", "00-" + kTrace + "-" + kSpan + "-0",
        "cc-" + kTrace + "-" + kSpan + "-01more", "00-" + kTrace.substr(1) + "X-" + kSpan + "-01",
        "00-0AF7651916cd43dd8448eb211c80319c-" + kSpan + "-01", "00_" + kTrace + "-" + kSpan + "-01"})
    EXPECT_FALSE(parse_traceparent(wrong)) << wrong;
}

TEST(Traces, SpansFollowEachOther) {
  Visit v{.id = "r", .client = "::1", .method = "POST", .route = "/v1/messages", .status = 200, .whole_s = 5};
  v.began_unix_ns = 1'000'000'000;
  v.submitted_s = 0.5;
  v.choices = 1;
  v.queued_s = 1;
  v.prefill_s = 2;
  v.decode_s = 0;
  v.parent = TraceParent{kTrace, kSpan, true};
  const boost::json::value all = boost::json::parse(otlp_json({v}, "tiny", "1"));
  const boost::json::array& spans = all.at_pointer("/resourceSpans/0/scopeSpans/0/spans").as_array();
  ASSERT_EQ(spans.size(), 3u) << "without a decode there is none";
  EXPECT_EQ(spans[0].at("name"), "POST /v1/messages");
  EXPECT_EQ(spans[0].at("parentSpanId").as_string(), kSpan);
  EXPECT_EQ(spans[0].at("endTimeUnixNano"), "6000000000");
  EXPECT_EQ(spans[1].at("startTimeUnixNano"), "1500000000");
  EXPECT_EQ(spans[2].at("name"), "prefill");
  EXPECT_EQ(spans[2].at("startTimeUnixNano"), spans[1].at("endTimeUnixNano"));
  for (size_t i : {size_t{1}, size_t{2}}) EXPECT_EQ(spans[i].at("parentSpanId"), spans[0].at("spanId"));
  for (const auto& s : spans) EXPECT_EQ(s.at("traceId").as_string(), kTrace);
}

TEST(Traces, AFullQueueDropsAndCounts) {
  Tracer t({.endpoint = "http://127.0.0.1:1", .waiting = 3});
  const Visit v;
  for (int i = 0; i < 5; ++i) t.add(v);
  EXPECT_EQ(t.dropped(), 2);
  Visit unsampled;
  unsampled.parent = TraceParent{kTrace, kSpan, false};
  t.add(unsampled);
  EXPECT_EQ(t.dropped(), 2) << "what nobody wants is not lost";
}

TEST(Traces, WhatTheCollectorDoesNotTakeIsDropped) {
  spdlog::default_logger()->set_level(spdlog::level::off);
  int64_t dropped = 0;
  {
    Tracer t({.endpoint = "http://127.0.0.1:1", .pause = std::chrono::milliseconds(1)});
    t.describe("m", "1");
    t.add(Visit{});
    for (int i = 0; i < 2000 && dropped == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      dropped = t.dropped();
    }
  }
  EXPECT_EQ(dropped, 1);
}

}  // namespace
}  // namespace winnow::server
