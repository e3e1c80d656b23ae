// The chat page: a few static files at / and /page/, embedded when the program was built (cmake/page.cmake). It is a client
// like any other: it talks to /v1 alone, with whatever key its user typed, and holds no state here. Its policy lets it load
// and reach this server only, and run no script but its own files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace winnow::server {

struct EmbeddedFile {
  std::string_view name, bytes;
};
std::vector<EmbeddedFile> embedded_page();  // made by the build; empty if it lacked the page's libraries

struct PageAnswer {
  int status = 200;  // 200, 304, 404 or 405
  std::vector<std::pair<std::string_view, std::string>> headers;
  std::string_view body;  // of static lifetime; HEAD sends its length alone
};

bool is_page(std::string_view path);  // "/", "/page/..."
PageAnswer page_answer(std::string_view method, std::string_view path, std::string_view if_none_match);

}  // namespace winnow::server
