// The log of a server: lines for people or JSON objects for collectors, written to stderr by a thread of its own, so that a
// collector that is slow holds up no request. If it does not keep up, the oldest lines that wait are lost.
#pragma once

#include <memory>
#include <string>

namespace winnow::cli {

class ServeLog {
 public:
  explicit ServeLog(bool json);  // from here on spdlog's default logger, and the one named "access", whose lines are fields
  ~ServeLog();                   // writes what waits
  ServeLog(const ServeLog&) = delete;
};

}  // namespace winnow::cli
