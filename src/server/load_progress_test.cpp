#include "server/load_progress.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "server/server.h"

namespace winnow::server {
namespace {

TEST(LoadProgress, TellsShareAndTimeLeft) {
  LoadProgress p;
  EXPECT_EQ(p.json(), R"({"status":"loading","progress":0.0,"eta_s":null})");
  EXPECT_EQ(p.retry_after_s(), 5);
  p.update(0, 0);
  EXPECT_EQ(p.share(), 0);
  p.update(25, 100);
  EXPECT_EQ(p.share(), 0.25);
  EXPECT_GE(p.eta_s().value(), 0);
  p.update(100, 100);
  EXPECT_EQ(p.json(), R"({"status":"loading","progress":1.0,"eta_s":0.0})");
  EXPECT_EQ(p.retry_after_s(), 1);
}

std::string get(const std::string& url, const std::string& head) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::atoi(url.substr(url.rfind(':') + 1).c_str())));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) {
    const std::string request = head + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    if (::send(fd, request.data(), request.size(), 0) > 0) {
      char part[4096];
      for (ssize_t n = 0; (n = ::recv(fd, part, sizeof part, 0)) > 0;) text.append(part, static_cast<size_t>(n));
    }
  }
  ::close(fd);
  return text;
}

TEST(LoadProgress, ThePortAnswersWhileTheModelLoads) {
  spdlog::default_logger()->set_level(spdlog::level::warn);
  ServerOptions options;
  options.port = 0;
  Server server(options);
  server.listen();
  server.progress().update(1, 4);
  const std::string ready = get(server.url(), "GET /ready");
  EXPECT_TRUE(ready.starts_with("HTTP/1.1 503")) << ready;
  EXPECT_NE(ready.find(R"({"status":"loading","progress":0.25,"eta_s":)"), std::string::npos) << ready;
  EXPECT_NE(ready.find("Retry-After: "), std::string::npos) << ready;
  EXPECT_TRUE(get(server.url(), "GET /health").starts_with("HTTP/1.1 200"));
  for (const char* head : {"POST /v1/chat/completions", "GET /v1/models", "GET /metrics", "POST /tokenize", "GET /version"}) {
    const std::string other = get(server.url(), head);
    EXPECT_TRUE(other.starts_with("HTTP/1.1 503")) << other;
    EXPECT_NE(other.find("still loading"), std::string::npos) << other;
  }
  EXPECT_NE(get(server.url(), "POST /v1/messages").find("overloaded_error"), std::string::npos);
  EXPECT_TRUE(get(server.url(), "GET /nothing").starts_with("HTTP/1.1 404"));
}

}  // namespace
}  // namespace winnow::server
