#include "server/tls.h"

#include <fmt/format.h>
#include <openssl/ssl.h>

#include "base/error.h"
#include "base/file.h"

namespace winnow::server {
namespace {

constexpr int64_t kMostBytes = 1 << 20;  // of a PEM file

std::string read(std::string_view flag, const std::string& path) {
  Result<std::string> text = read_text(path, kMostBytes);
  if (!text) throw Error(fmt::format("{}: {}", flag, text.error().what()));
  return std::move(*text);
}

}  // namespace

boost::asio::ssl::context tls_context(const std::string& certificate, const std::string& key) {
  namespace ssl = boost::asio::ssl;
  const std::string chain = read("--tls-cert", certificate), secret = read("--tls-key", key);
  ssl::context c(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(c.native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(c.native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  boost::system::error_code bad;
  bad = c.set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, bad);  // never ask on the terminal
  bad = c.use_certificate_chain(boost::asio::buffer(chain), bad);
  if (bad) throw Error(fmt::format("--tls-cert {}: {}; it has to be a PEM certificate, then those of its issuers", certificate, bad.message()));
  bad = c.use_private_key(boost::asio::buffer(secret), ssl::context::pem, bad);
  if (bad) throw Error(fmt::format("--tls-key {}: {}; it has to be the unencrypted PEM key of the certificate in --tls-cert", key, bad.message()));
  return c;
}

}  // namespace winnow::server
