// What a request is asked as soon as its header is there, before a byte of its body: where it goes, whether a page of another
// site may send it, whose key it has, what that key may still use. And what every answer carries, and what is written down of it.
#include <fmt/format.h>

#include <algorithm>

#include "base/json_writer.h"
#include "server/http_state.h"
#include "server/page.h"

namespace winnow::server {
namespace {

std::string_view view(boost::core::string_view s) { return {s.data(), s.size()}; }

std::string_view path_of(const HttpRequest& request) {
  const std::string_view target = view(request.target());
  return target.substr(0, target.find('?'));
}

constexpr std::string_view name_of(Reason r) {
  switch (r) {
    case Reason::key_requests: return "key_requests";
    case Reason::key_tokens: return "key_tokens";
    case Reason::key_concurrent: return "key_concurrent";
    case Reason::queue: return "queue";
  }
  return "";
}

// The answer to a browser that asks whether a page may send what it wants to send (Fetch standard, CORS preflight).
HttpResponse preflight(const HttpRequest& request, bool keep_alive) {
  HttpResponse r = respond(request, 204, {}, keep_alive);
  r.erase(http::field::content_type);
  r.erase(http::field::content_length);
  r.set(http::field::access_control_allow_methods, "GET, POST, DELETE");
  if (const auto wanted = request[http::field::access_control_request_headers]; !wanted.empty())
    r.set(http::field::access_control_allow_headers, wanted);
  r.set(http::field::access_control_max_age, "600");
  return r;
}

}  // namespace

HttpResponse respond(const HttpRequest& request, int status, std::string body, bool keep_alive) {
  HttpResponse r(static_cast<http::status>(status), request.version());
  r.set(http::field::server, "winnow");
  r.set(http::field::content_type, "application/json");
  r.keep_alive(keep_alive);
  if (request.method() != http::verb::head) r.body() = std::move(body);
  r.prepare_payload();
  return r;
}

HttpResponse Server::State::refused(const HttpRequest& request, const Refusal& refusal, bool keep_alive) const {
  HttpResponse r = respond(request, refusal.status, error_json(path_of(request), refusal), keep_alive && !stopping);
  if (refusal.retry_after_s > 0) r.set(http::field::retry_after, std::to_string(refusal.retry_after_s));
  return r;
}

// Which place the request is for, and what is known of it from its header.
void Server::State::find(Connection& c, Asked* asked) {
  const HttpRequest& r = asked->request;
  c.visit.method = view(r.method_string()).substr(0, 16);
  c.visit.id = view(r["x-request-id"]);
  if (!is_request_id(c.visit.id)) c.visit.id = random_id();
  if (tracer) c.visit.parent = parse_traceparent(view(r["traceparent"]));
  c.key.reset();
  const auto target = boost::urls::parse_origin_form(r.target());
  if (!target) return;
  asked->path = target->path();
  if (is_page(asked->path)) {
    c.visit.route = "/";
    return;
  }
  asked->found = find_route(view(r.method_string()), asked->path, &asked->allow);
  if (const auto* match = std::get_if<Match>(&asked->found)) {
    c.visit.route = match->route->path;
    c.visit.generates = match->route->does == Does::generate;
  }
}

// Whose request it is; or why that is not known and has to be.
std::optional<Refusal> Server::State::who(Connection& c, const Asked& asked) {
  if (options.keys.empty()) return {};
  const std::string_view shown = shown_key(view(asked.request[http::field::authorization]), view(asked.request["x-api-key"]));
  if (!shown.empty()) c.key = options.keys.find(shown);
  if (c.key) c.visit.key = options.keys.name(*c.key);
  const auto* match = std::get_if<Match>(&asked.found);
  const Access access = match ? access_of(match->route->does) : Access::key;
  if (c.key || access == Access::open || (access == Access::metrics && options.metrics_open)) return {};
  if (metrics) metrics->refused(shown.empty() ? "no_key" : "wrong_key");
  return Refusal{.status = 401,
                 .message = shown.empty() ? "this server wants an API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
                                          : "the API key is wrong: this server does not know it",
                 .param = {},
                 .code = "invalid_api_key"};
}

// The answer to a request that gets none from its route; nothing if it may go on.
std::optional<HttpResponse> Server::State::gate(Connection& c, const Asked& asked) {
  const HttpRequest& r = asked.request;
  const bool keep = r.keep_alive() && !stopping;
  const std::string_view origin = view(r[http::field::origin]);
  const bool known = !origin.empty() && std::ranges::any_of(options.cors_origins, [&](const std::string& o) { return o == "*" || o == origin; });
  c.origin = known ? origin : std::string_view();
  const auto no = [&](Refusal why, std::string_view reason) {
    if (metrics && !reason.empty()) metrics->refused(reason);
    return refused(r, why, keep);
  };
  if (static_cast<size_t>(std::distance(r.begin(), r.end())) > options.limits.headers)
    return no({431, fmt::format("the header has more than {} fields", options.limits.headers), {}, {}}, "header_fields");
  // Its body has no end that is known here, so what follows must not be taken for a request (RFC 9112, 6.1).
  const auto coding = r[http::field::transfer_encoding];
  if (r.count(http::field::transfer_encoding) > 1 || (!coding.empty() && !beast::iequals(coding, "chunked"))) {
    c.unread = true;
    return no({400, "a body may come with a Content-Length or in chunks; no other Transfer-Encoding is known", {}, {}}, "");
  }
  if (c.visit.route == "/") return {};  // the page holds no secret, and asks for the key
  if (known && r.method() == http::verb::options && !r[http::field::access_control_request_method].empty()) return preflight(r, keep);
  // A form of any page in the user's browser could reach a server on this machine; the browser says so.
  const std::string_view site = view(r["sec-fetch-site"]);
  if ((site == "cross-site" || site == "same-site") && !known && r.method() != http::verb::get)
    return no({403, "a page of another site may not use this server; its operator can allow it with --cors-origin", {}, "origin_not_allowed"},
              "origin");
  if (const auto refusal = who(c, asked)) {
    HttpResponse response = refused(r, *refusal, keep);
    response.set(http::field::www_authenticate, "Bearer");
    return response;
  }
  const auto* match = std::get_if<Match>(&asked.found);
  if (!match) return {};
  const Does does = match->route->does;
  if (loading() && does != Does::health && does != Does::ready)
    return no({.status = 503, .message = "the model is still loading; GET /ready says how far it is", .retry_after_s = progress.retry_after_s()}, "");
  if (match->route->method != "POST" || does == Does::cancel_response) return {};  // nothing but looking up and ending
  std::variant<Quota::Place, TooMuch> place = quota.take(c.key.value_or(0), c.visit.generates);
  if (const auto* full = std::get_if<TooMuch>(&place))
    return no({.status = 429, .message = full->message + "; try again later", .code = "rate_limit_exceeded", .retry_after_s = full->retry_after_s},
              name_of(full->reason));
  c.place = std::move(std::get<Quota::Place>(place));
  return {};
}

void Server::State::mark(const Connection& c, http::fields& head) const {
  if (!c.visit.id.empty()) {
    head.set("x-request-id", c.visit.id);
    if (c.visit.route.starts_with("/v1/messages")) head.set("request-id", c.visit.id);  // where Anthropic's clients look
  }
  if (!options.cors_origins.empty()) head.insert(http::field::vary, "Origin");
  if (c.origin.empty()) return;
  head.set(http::field::access_control_allow_origin, c.origin);
  head.set(http::field::access_control_expose_headers, "x-request-id, request-id, retry-after");
}

void Server::State::end_visit(Connection& c) {
  Visit& v = c.visit;
  v.whole_s = std::chrono::duration<double>(Visit::Clock::now() - v.began).count();
  if (v.status == 0) v.status = 499;  // as nginx has it: the client left before there was an answer
  const bool probe = v.route == "/health" || v.route == "/ready" || v.route == "/metrics";
  if (tracer && !probe) tracer->add(v);
  if (metrics && c.key) metrics->used(v.key, v.prompt_tokens + v.answer_tokens);
  access->log(probe ? spdlog::level::debug : spdlog::level::info, "{}", access_line(v, options.json_logs));
}

// Responses are kept for the key that asked for them.
std::string Server::State::kept_id(const Connection& c, std::string_view response) const {
  return fmt::format("{} {}", c.key ? options.keys.name(*c.key) : "", response);
}

}  // namespace winnow::server
