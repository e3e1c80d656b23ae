// What the server shows of itself in TLS: its certificate and key, from PEM files. TLS 1.2 and 1.3.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <string>

namespace winnow::server {

// Throws Error, which names the flag and the file.
boost::asio::ssl::context tls_context(const std::string& certificate, const std::string& key);

}  // namespace winnow::server
