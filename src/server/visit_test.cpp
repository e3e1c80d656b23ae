#include "server/visit.h"

#include <gtest/gtest.h>

namespace winnow::server {
namespace {

TEST(Visit, RequestIdsAreHarmless) {
  for (const char* id : {"a", "req_1-2.3", "0123456789"}) EXPECT_TRUE(is_request_id(id)) << id;
  for (const char* id : {"", "a b", "a\n", "\"", "a=b", "\xc3\xa9", "a/b"}) EXPECT_FALSE(is_request_id(id)) << id;
  EXPECT_TRUE(is_request_id(std::string(128, 'a')));
  EXPECT_FALSE(is_request_id(std::string(129, 'a')));
  EXPECT_TRUE(is_request_id(random_id()));
  EXPECT_NE(random_id(), random_id());
}

TEST(Visit, LinesForPeopleAndForCollectors) {
  Visit v{.id = "x1", .client = "::1", .method = "G\"T", .route = "/v1/models", .key = "a b", .status = 200, .whole_s = 0.5};
  EXPECT_EQ(access_line(v, false), R"(request_id=x1 client=::1 key="a b" method="G\"T" route=/v1/models status=200 duration_s=0.500000)");
  EXPECT_EQ(access_line(v, true),
            R"("request_id":"x1","client":"::1","key":"a b","method":"G\"T","route":"/v1/models","status":200,"duration_s":0.500000)");
  v.choices = 2;
  v.prompt_tokens = 7;
  v.cut = true;
  EXPECT_NE(access_line(v, false).find(" prompt_tokens=7 cached_tokens=0 answer_tokens=0 choices=2 "), std::string::npos);
  EXPECT_TRUE(access_line(v, false).ends_with(" end=cut"));
}

}  // namespace
}  // namespace winnow::server
