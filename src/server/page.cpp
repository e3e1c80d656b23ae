#include "server/page.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <span>

namespace winnow::server {
namespace {

constexpr std::string_view kFolder = "/page/";

// require-trusted-types-for: where the browser knows it, text can become HTML through DOMPurify alone.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify";

struct File {
  std::string_view name, type, bytes;
  std::string tag;
};

std::string_view type_of(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kTypes{{{".html", "text/html; charset=utf-8"},
                                                                                        {".css", "text/css; charset=utf-8"},
                                                                                        {".js", "text/javascript; charset=utf-8"},
                                                                                        {".svg", "image/svg+xml"},
                                                                                        {".txt", "text/plain; charset=utf-8"}}};
  for (const auto& [ending, type] : kTypes)
    if (name.ends_with(ending)) return type;
  return "application/octet-stream";
}

std::span<const File> files() {
  static const std::vector<File> all = [] {
    std::vector<File> list;
    for (const EmbeddedFile& f : embedded_page())
      list.push_back({f.name, type_of(f.name), f.bytes, fmt::format("\"{:016x}\"", XXH3_64bits(f.bytes.data(), f.bytes.size()))});
    return list;
  }();
  return all;
}

// RFC 9110, 13.1.2: a list of tags, compared weakly, or *.
bool matches(std::string_view if_none_match, std::string_view tag) {
  return if_none_match == "*" || if_none_match.find(tag) != std::string_view::npos;
}

}  // namespace

bool is_page(std::string_view path) { return path == "/" || path.starts_with(kFolder); }

PageAnswer page_answer(std::string_view method, std::string_view path, std::string_view if_none_match) {
  const std::string_view name = path == "/" ? "index.html" : path.substr(kFolder.size());
  const auto found = std::find_if(files().begin(), files().end(), [&](const File& f) { return f.name == name; });
  PageAnswer a;
  a.headers = {{"X-Content-Type-Options", "nosniff"}};
  const auto plain = [&](int status, std::string_view text) {
    a.status = status;
    a.body = text;
    a.headers.emplace_back("Content-Type", "text/plain; charset=utf-8");
    return a;
  };
  if (files().empty())
    return plain(404, "This winnow was built without the chat page: its build lacked the packages of ./dev setup. The API is at /v1.\n");
  if (found == files().end()) return plain(404, "There is no such file of the page.\n");
  if (method != "GET" && method != "HEAD") {
    a.headers.emplace_back("Allow", "GET, HEAD");
    return plain(405, "The page takes GET and HEAD only.\n");
  }
  a.headers.emplace_back("ETag", found->tag);
  a.headers.emplace_back("Cache-Control", "no-cache");  // kept, and asked about each time: a new build is seen at once
  a.headers.emplace_back("Content-Security-Policy", kPolicy);
  a.headers.emplace_back("Referrer-Policy", "no-referrer");
  a.headers.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
  a.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  if (matches(if_none_match, found->tag)) {
    a.status = 304;
    return a;
  }
  a.headers.emplace_back("Content-Type", found->type);
  a.body = found->bytes;
  return a;
}

}  // namespace winnow::server
