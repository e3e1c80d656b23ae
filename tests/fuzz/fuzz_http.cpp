// Bytes on a connection of the server that runs in this process, while its model loads: all of HTTP is there, and every request is
// answered without a model. Whatever comes, what goes back is HTTP, none of it says 500, and the connection ends.
#include <spdlog/spdlog.h>

#include <boost/asio.hpp>
#include <cstdint>
#include <cstdlib>

#include "server/server.h"

using namespace winnow;
using boost::asio::ip::tcp;

namespace {

struct Target {
  Target() : server({.port = 0}) {
    spdlog::set_level(spdlog::level::off);
    server.listen();
    const std::string url = server.url();
    endpoint = tcp::endpoint(boost::asio::ip::address_v4::loopback(), static_cast<uint16_t>(std::atoi(url.c_str() + url.rfind(':') + 1)));
  }
  server::Server server;
  tcp::endpoint endpoint;
};

// The answers, one behind the other; a body that is too short is one whose connection was closed.
void check_answers(std::string_view data) {
  while (!data.empty()) {
    check(data.starts_with("HTTP/1.1 ") || data.starts_with("HTTP/1.0 "), "an answer begins as one");
    const size_t end = data.find("\r\n\r\n");
    check(end != data.npos, "an answer has a header");
    const std::string_view head = data.substr(0, end + 2);
    const int status = std::atoi(std::string(head.substr(9, 3)).c_str());
    check(status == 100 || (status >= 200 && status < 500) || status == 503, "no answer is the server's fault");
    const size_t at = head.find("Content-Length: ");
    const size_t length = at == head.npos ? 0 : static_cast<size_t>(std::atoll(std::string(head.substr(at + 16, 20)).c_str()));
    check(length <= data.size() - end - 4, "an answer is whole");
    data.remove_prefix(end + 4 + length);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Target target;
  static boost::asio::io_context io;
  static uint32_t connections = 0;
  tcp::socket socket(io);
  boost::system::error_code bad;
  socket.open(tcp::v4(), bad);
  // From many addresses: the ports of one would run short while closed connections linger.
  socket.bind(tcp::endpoint(boost::asio::ip::address_v4(0x7F000001 + (++connections % 200 << 8)), 0), bad);
  socket.connect(target.endpoint, bad);
  if (bad) return 0;
  // The first byte cuts the rest in two writes.
  const size_t cut = size > 1 ? data[0] * (size - 1) / 256 : 0;
  if (size > 1) boost::asio::write(socket, boost::asio::buffer(data + 1, cut), bad);
  if (size > 1) boost::asio::write(socket, boost::asio::buffer(data + 1 + cut, size - 1 - cut), bad);
  socket.shutdown(tcp::socket::shutdown_send, bad);
  std::string all;
  boost::asio::read(socket, boost::asio::dynamic_buffer(all), bad);
  const bool heads = std::string_view(reinterpret_cast<const char*>(data), size).find("HEAD") != std::string_view::npos;  // they have no body
  if (bad == boost::asio::error::eof && !heads) check_answers(all);
  return 0;
}
