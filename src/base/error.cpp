#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace winnow {

void check_failed(std::string_view message, std::source_location where) {
  std::fprintf(stderr, "%s:%u: check failed: %.*s\n", where.file_name(), static_cast<unsigned>(where.line()), static_cast<int>(message.size()),
               message.data());
  std::abort();
}

}  // namespace winnow
