#include "server/page.h"

#include <gtest/gtest.h>

#include <map>

namespace winnow::server {
namespace {

std::map<std::string_view, std::string> headers(const PageAnswer& a) { return {a.headers.begin(), a.headers.end()}; }

class Page : public testing::Test {
 protected:
  void SetUp() override {
    if (embedded_page().empty()) GTEST_SKIP() << "built without the page's libraries";
  }
};

TEST(PagePaths, AreRootAndFolder) {
  for (std::string_view path : {"/", "/page/main.js", "/page/none"}) EXPECT_TRUE(is_page(path)) << path;
  for (std::string_view path : {"", "/page", "/pages", "/v1/models", "/index.html"}) EXPECT_FALSE(is_page(path)) << path;
}

TEST_F(Page, EveryFileHasATypeAndATag) {
  for (const EmbeddedFile& f : embedded_page()) {
    const PageAnswer a = page_answer("GET", "/page/" + std::string(f.name), "");
    EXPECT_EQ(a.status, 200);
    EXPECT_EQ(a.body, f.bytes);
    EXPECT_FALSE(f.bytes.empty()) << f.name;
    EXPECT_NE(headers(a)["Content-Type"], "application/octet-stream") << f.name;
    const std::string tag = headers(a)["ETag"];
    EXPECT_EQ(tag.size(), 18u);
    const PageAnswer again = page_answer("GET", "/page/" + std::string(f.name), "\"other\", W/" + tag);
    EXPECT_EQ(again.status, 304);
    EXPECT_TRUE(again.body.empty());
    EXPECT_EQ(headers(again)["ETag"], tag);
    EXPECT_EQ(page_answer("GET", "/page/" + std::string(f.name), "\"0000000000000000\"").status, 200);
  }
}

TEST_F(Page, RootIsTheDocumentUnderAStrictPolicy) {
  const PageAnswer a = page_answer("GET", "/", "");
  EXPECT_TRUE(a.body.starts_with("<!doctype html>"));
  EXPECT_EQ(headers(a)["Content-Type"], "text/html; charset=utf-8");
  const std::string policy = headers(a)["Content-Security-Policy"];
  for (std::string_view part : {"default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"})
    EXPECT_NE(policy.find(part), std::string::npos) << part;
  for (std::string_view part : {"unsafe", "http", "*", "data:"}) EXPECT_EQ(policy.find(part), std::string::npos) << part;
}

TEST_F(Page, RefusesWhatItIsNot) {
  EXPECT_EQ(page_answer("GET", "/page/", "").status, 404);
  EXPECT_EQ(page_answer("GET", "/page/../http.cpp", "").status, 404);
  const PageAnswer posted = page_answer("POST", "/", "");
  EXPECT_EQ(posted.status, 405);
  EXPECT_EQ(headers(posted)["Allow"], "GET, HEAD");
  EXPECT_EQ(page_answer("HEAD", "/", "").body, page_answer("GET", "/", "").body);
}

}  // namespace
}  // namespace winnow::server
