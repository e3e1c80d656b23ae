// JSON from files that nobody vouches for: size and depth are bounded and a repeated key is an error, because the parser
// would keep one of the two values silently.
#pragma once

#include <boost/json/value.hpp>

#include <string>
#include <string_view>

#include "base/error.h"

namespace winnow::weights {

// `where` names the file in messages.
Result<boost::json::value> parse_json(std::string_view text, std::string_view where);

// A name from a file, for a message: in quotes, shortened, control characters escaped, so that it stays one line.
std::string quoted(std::string_view name);

}  // namespace winnow::weights
