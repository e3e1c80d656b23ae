// A connection's bytes, plain or through TLS, behind one type: what reads and writes requests is compiled once and does not ask.
// It is an AsyncReadStream and AsyncWriteStream as Asio and Beast have them.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/ssl.hpp>
#include <optional>

namespace winnow::server {

class Wire {
 public:
  using Tcp = boost::beast::tcp_stream;
  using Tls = boost::beast::ssl_stream<Tcp>;
  using executor_type = Tcp::executor_type;

  Wire(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context* tls) {
    if (tls) tls_.emplace(std::move(socket), *tls);
    else plain_.emplace(std::move(socket));
  }
  executor_type get_executor() { return tcp().get_executor(); }
  Tcp& tcp() { return tls_ ? tls_->next_layer() : *plain_; }
  boost::asio::ip::tcp::socket& socket() { return tcp().socket(); }
  Tls* tls() { return tls_ ? &*tls_ : nullptr; }

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return plain_->async_read_some(buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return plain_->async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  std::optional<Tcp> plain_;
  std::optional<Tls> tls_;
};

}  // namespace winnow::server
