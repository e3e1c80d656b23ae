// Answers: what a route does once its request is read and may be answered.
#include <fmt/format.h>

#include "base/json_writer.h"
#include "server/http_state.h"
#include "server/page.h"
#include "server/sse.h"
#include "server/tokenize.h"

namespace winnow::server {
namespace {

constexpr std::chrono::hours kForever{24 * 365};
constexpr std::chrono::seconds kCancelled{5};  // to the end of a request that was cancelled
constexpr size_t kPeek = 4096;                 // bytes of a next request that are taken while one is answered

int64_t unix_seconds() { return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(); }

HttpResponse page_response(const HttpRequest& request, const std::string& path, bool keep_alive) {
  const PageAnswer page = page_answer(std::string_view(request.method_string()), path, std::string_view(request[http::field::if_none_match]));
  HttpResponse r = respond(request, page.status, std::string(page.body), keep_alive);
  r.erase(http::field::content_type);
  for (const auto& [name, value] : page.headers) r.set(boost::core::string_view(name.data(), name.size()), value);
  if (request.method() == http::verb::head) r.content_length(page.body.size());
  return r;
}

}  // namespace

// What needs no waiting.
HttpResponse Server::State::at_once(const Connection& c, const HttpRequest& request, const Match& match) {
  const bool keep = request.keep_alive() && !stopping;
  JsonWriter w;
  switch (match.route->does) {
    case Does::metrics: {
      if (tracer) metrics->traces(tracer->sent(), tracer->dropped());
      HttpResponse r = respond(request, 200, metrics->text(services().engine.totals(), services().steps), keep);
      r.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      return r;
    }
    case Does::version: return respond(request, 200, w.begin_object().field("version", services().version).end_object().take(), keep);
    case Does::ready:
      if (loading()) {
        HttpResponse r = respond(request, 503, progress.json(), keep);
        r.set(http::field::retry_after, std::to_string(progress.retry_after_s()));
        return r;
      }
      return respond(request, stopping ? 503 : 200, w.begin_object().field("status", stopping ? "stopping" : "ready").end_object().take(), keep);
    case Does::models: return respond(request, 200, models_json(services().facts), keep);
    case Does::model:
      if (match.id == services().facts.name) return respond(request, 200, model_json(services().facts), keep);
      return refused(
          request, {404, fmt::format("model: there is no such model here; this server has '{}'", services().facts.name), "model", "model_not_found"},
          keep);
    case Does::get_response:
    case Does::input_items: return get_response(request, match, kept_id(c, match.id), keep);
    case Does::delete_response:
      if (!responses.erase(kept_id(c, match.id))) return refused(request, unknown_response(match.id), keep);
      for (const auto& b : background) {
        if (b->kept != kept_id(c, match.id)) continue;
        b->bell->cancel = true;  // nobody can ask for it any more
        b->bell->ring();
      }
      return respond(request, 200, deleted_json(match.id), keep);
    default: return refused(request, {500, "the route is known and has no answer", {}, {}}, keep);
  }
}

// A kept response, or what it was asked.
HttpResponse Server::State::get_response(const HttpRequest& request, const Match& match, const std::string& kept, bool keep_alive) {
  Query query;
  if (const auto target = boost::urls::parse_origin_form(request.target()))
    for (const auto& p : target->params()) query.emplace_back(std::string(p.key), std::string(p.value));
  const auto found = responses.find(kept);
  if (!found) return refused(request, unknown_response(match.id), keep_alive);
  if (match.route->does == Does::get_response) {
    for (const auto& [name, value] : query)
      if ((name == "stream" && value == "true") || name == "starting_after")
        return refused(
            request,
            {.message = fmt::format("{}: a kept response is not streamed again; ask for it until its status is neither queued nor in_progress", name),
             .param = name,
             .code = {}},
            keep_alive);
    return respond(request, 200, found->json, keep_alive);
  }
  std::variant<std::string, Refusal> page = input_items_json(*found, query);
  if (const auto* refusal = std::get_if<Refusal>(&page)) return refused(request, *refusal, keep_alive);
  return respond(request, 200, std::move(std::get<std::string>(page)), keep_alive);
}

asio::awaitable<bool> Server::State::answer(Connection& c, const Asked& asked) {
  const HttpRequest& request = asked.request;
  const bool keep = request.keep_alive() && !stopping;
  std::optional<HttpResponse> response;
  if (c.visit.route == "/") {
    response = page_response(request, asked.path, keep);
    co_return co_await send(c, *response);
  }
  if (const auto* refusal = std::get_if<Refusal>(&asked.found)) {
    response = refused(request, *refusal, !asked.path.empty() && keep);
    if (!asked.allow.empty()) response->set(http::field::allow, asked.allow);
    co_return co_await send(c, *response);
  }
  const Match& match = std::get<Match>(asked.found);
  switch (match.route->does) {
    case Does::generate: co_return co_await generate(c, request, match.route->api);
    case Does::count_tokens:
    case Does::tokenize:
    case Does::detokenize: co_return co_await without_model(c, request, match.route->api);
    case Does::cancel_response: co_return co_await cancel_response(c, request, match.id);
    case Does::health: {
      const bool well = loading() || co_await healthy();
      JsonWriter w;
      w.begin_object().field("status", loading() ? "loading" : well ? "ok" : "the engine finished no step within the deadline").end_object();
      response = respond(request, well ? 200 : 503, w.take(), keep);
      break;
    }
    default: response = at_once(c, request, match);
  }
  co_return co_await send(c, *response);
}

// True if the engine thread showed itself within the deadline, or does so until another one. Asks in turns: a thread that
// waits would be missing to the requests.
asio::awaitable<bool> Server::State::healthy() {
  const auto asked = std::chrono::steady_clock::now();
  const auto deadline = options.limits.health_deadline;
  for (;;) {
    const engine::Pulse pulse = services().engine.pulse(asked - deadline);
    if (pulse != engine::Pulse::asked) co_return pulse == engine::Pulse::alive;
    if (std::chrono::steady_clock::now() >= asked + deadline) co_return false;
    asio::steady_timer turn(io, kTurn);
    co_await turn.async_wait(kResult);
  }
}

// Rings when the client closes its side, and when it ends: when that read is cancelled, or the client sends more, which is kept
// for the next request. The connection waits for that end (stop_watching). Only a read tells of the end of TLS.
asio::awaitable<void> watch(Connection& c) {
  const std::shared_ptr<Bell> bell = c.bell;
  const auto room = c.buffer.prepare(kPeek);
  auto [bad, n] = co_await c.stream.async_read_some(room, kResult);
  c.buffer.commit(n);
  bell->gone = bad && bad != asio::error::operation_aborted;
  bell->watched = false;
  bell->ring();
}

asio::awaitable<bool> Server::State::without_model(Connection& c, const HttpRequest& request, Api api) {
  std::variant<std::string, Refusal> answer;
  auto work = [&] {
    try {
      answer = answer_without_model(api, request.body(), services(), options.limits);
    } catch (const Error& e) {  // a text beyond what the tokenizer or the template can take
      answer = Refusal{.status = 400, .message = e.what(), .param = {}, .code = {}};
    }
  };
  co_await aside(work);
  const bool keep = request.keep_alive() && !stopping;
  HttpResponse response;
  if (const auto* refusal = std::get_if<Refusal>(&answer)) response = refused(request, *refusal, keep);
  else response = respond(request, 200, std::move(std::get<std::string>(answer)), keep);
  co_return co_await send(c, response);
}

// Ends a response that runs and answers with what it came to; one that has ended stays as it is.
asio::awaitable<bool> Server::State::cancel_response(Connection& c, const HttpRequest& request, const std::string& id) {
  const std::string kept = kept_id(c, id);
  if (const auto running = running_responses.find(kept); running != running_responses.end()) {
    running->second->cancel = true;
    running->second->ring();
  }
  const auto latest = std::chrono::steady_clock::now() + kCancelled;
  while (running_responses.contains(kept) && std::chrono::steady_clock::now() < latest) {
    asio::steady_timer turn(io, kTurn);
    co_await turn.async_wait(kResult);
  }
  const bool keep = request.keep_alive() && !stopping;
  const auto found = responses.find(kept);
  HttpResponse response = found ? respond(request, 200, found->json, keep) : refused(request, unknown_response(id), keep);
  co_return co_await send(c, response);
}

// What the generation took, counted once it has ended or is left: before its last byte is sent, because the client may ask again
// as soon as it has that.
void Server::State::settle(Connection& c, const Generation& generation) {
  Visit& v = c.visit;
  if (v.choices > 0) return;
  const Usage u = generation.usage();
  v.choices = static_cast<int64_t>(generation.choices());
  v.prompt_tokens = u.prompt_tokens;
  v.cached_tokens = u.cached.tokens;
  v.answer_tokens = u.completion_tokens;
  v.queued_s = u.queued_s;
  v.prefill_s = u.prefill_s;
  v.decode_s = u.decode_s;
  v.cut = !generation.done();
  c.place.spend(u.prompt_tokens + u.completion_tokens);
  c.place = {};
}

// Keeps a response as it ended, unless it was deleted meanwhile. As with settle(): the client that has the last byte may ask for it.
asio::awaitable<void> Server::State::keep(const std::string& kept, const ResponsesAnswer& answer, const Generation& generation) {
  const Usage u = generation.usage();
  auto put = [&] { responses.put(kept, answer.record(&u)); };
  if (answer.stored() && responses.find(kept)) co_await aside(put);
  running_responses.erase(kept);
}

// Why a generation ended that gave no answer.
Refusal why_failed(const Request& request, const Delta& delta) {
  if (delta.barred) {  // a grammar without a way on, or min_tokens where it has ended
    const std::string& field = request.output.field;
    return {400, field.empty() ? delta.error : fmt::format("{}: {}", field, delta.error), field, {}};
  }
  if (delta.late) return {504, fmt::format("timeout: {}", delta.error), "timeout", "timeout"};
  const bool stopped = delta.finish == engine::FinishReason::cancelled;
  return {stopped ? 503 : 500, stopped ? "the server is stopping" : delta.error, {}, {}};
}

// The life of a background response.
asio::awaitable<void> Server::State::work_on(std::shared_ptr<Background> b) {
  try {
    co_await finish(*b);
  } catch (const std::exception& e) {  // out of memory and the like
    spdlog::error("background response: {}", e.what());
    running_responses.erase(b->kept);
  }
  std::erase(background, b);
  check_finished();
}

asio::awaitable<void> Server::State::finish(Background& b) {
  RequestMetrics seen(*metrics, b.generation, b.received);
  bool begun = false;
  while (!b.generation.done()) {
    co_await b.bell->wait(kForever);
    if (b.bell->abort || b.bell->cancel) b.generation.cancel();
    const std::vector<Delta> news = b.generation.poll();
    for (const Delta& delta : news) {
      seen.see(delta);
      const bool cancelled = delta.finish == engine::FinishReason::cancelled;
      if (cancelled && b.bell->cancel) b.answer.cancelled();
      else if (cancelled || delta.finish == engine::FinishReason::error) b.answer.failed(why_failed(b.generation.request(), delta));
      b.answer.add(delta);
    }
    if (begun || news.empty()) continue;
    begun = true;
    if (responses.find(b.kept)) responses.put(b.kept, b.answer.record(nullptr));  // no more queued
  }
  const Usage u = b.generation.usage();
  b.place.spend(u.prompt_tokens + u.completion_tokens);
  b.place = {};
  if (!b.key.empty()) metrics->spent(b.key, u.prompt_tokens + u.completion_tokens);
  co_await keep(b.kept, b.answer, b.generation);
}

asio::awaitable<bool> Server::State::generate(Connection& c, const HttpRequest& request, Api api) {
  const auto received = RequestMetrics::Clock::now();
  std::variant<Generation, Refusal> started = Refusal{.status = 500, .message = "the request could not be started", .param = {}, .code = {}};
  const auto begin = [&]() -> std::variant<Generation, Refusal> {
    std::variant<Request, Refusal> parsed = parse_request(api, request.body(), services().facts, options.limits);
    if (auto* refusal = std::get_if<Refusal>(&parsed)) return std::move(*refusal);
    if (auto refusal = continue_previous(&std::get<Request>(parsed), responses, kept_id(c, ""), options.limits)) return std::move(*refusal);
    return Generation::start(std::move(std::get<Request>(parsed)), services());
  };
  const std::string id = random_id();
  std::optional<ApiAnswer> made;
  auto start = [&] {
    try {
      started = begin();
      c.visit.submitted_s = std::chrono::duration<double>(Visit::Clock::now() - c.visit.began).count();
      if (const auto* g = std::get_if<Generation>(&started)) made.emplace(make_answer(g->request(), services(), id, unix_seconds()));
    } catch (const Error& e) {  // a text beyond what the tokenizer or the template can take
      started = Refusal{.status = 400, .message = e.what(), .param = {}, .code = {}};
    }
  };
  co_await aside(start);
  forget_body(c);
  if (auto* refusal = std::get_if<Refusal>(&started)) {
    HttpResponse response = refused(request, *refusal, request.keep_alive());
    co_return co_await send(c, response);
  }

  Generation& generation = std::get<Generation>(started);
  ApiAnswer& answer = *made;
  auto* const response = std::get_if<ResponsesAnswer>(&answer);
  const std::string kept = response ? kept_id(c, response->id()) : std::string();
  c.place.count(static_cast<int64_t>(generation.choices()));
  const auto bell = response && response->background() ? std::make_shared<Bell>(io) : c.bell;
  if (response) {
    running_responses[kept] = bell;
    if (response->stored()) responses.put(kept, response->record(nullptr));
  }
  if (response && response->background()) {
    HttpResponse queued = respond(request, 200, response->json(response->status(), nullptr), request.keep_alive() && !stopping);
    const auto b =
        std::make_shared<Background>(Background{std::move(generation), std::move(*response), std::move(c.place), bell, kept, c.visit.key, received});
    background.push_back(b);
    b->generation.on_news([bell] { bell->ring(); });
    bell->abort = stopping;
    bell->ring();
    asio::co_spawn(io, work_on(b), asio::detached);
    co_return co_await send(c, queued);
  }
  c.bell->gone = c.bell->cancel = false;
  c.bell->watched = true;
  generation.on_news([bell = c.bell] { bell->ring(); });
  c.bell->ring();  // for what came before
  asio::co_spawn(io, watch(c), asio::detached);
  const bool more = co_await tell(c, request, generation, answer, received);
  if (response && running_responses.contains(kept)) {
    if (!generation.done()) response->cancelled();  // its client is gone
    co_await keep(kept, *response, generation);
  }
  co_await stop_watching(c);
  settle(c, generation);
  co_return more;
}

asio::awaitable<bool> Server::State::send_head(Connection& c, const HttpRequest& request, const std::string& first, bool chunked) {
  http::response<http::empty_body> head(http::status::ok, request.version());
  head.set(http::field::server, "winnow");
  head.set(http::field::content_type, "text/event-stream");
  head.set(http::field::cache_control, "no-cache");
  head.set("x-accel-buffering", "no");  // nginx: pass events on as they come
  head.keep_alive(chunked && request.keep_alive() && !stopping);
  if (chunked) head.chunked(true);
  http::response_serializer<http::empty_body> serializer(head);
  c.stream.tcp().expires_after(options.limits.write_timeout);
  c.visit.status = 200;
  mark(c, head.base());
  metrics->answered(c.visit.route, 200);
  auto [bad, n] = co_await http::async_write_header(c.stream, serializer, kResult);
  if (bad) co_return false;
  if (first.empty()) co_return true;
  co_return co_await send_text(c, first, chunked);
}

// Answers with a running generation, as a stream or as a whole. Leaves early, which cancels it, if the client is gone.
asio::awaitable<bool> Server::State::tell(Connection& c, const HttpRequest& request, Generation& generation, ApiAnswer& answer,
                                          RequestMetrics::Clock::time_point received) {
  const bool stream = generation.request().stream, chunked = request.version() >= 11;
  RequestMetrics seen(*metrics, generation, received);
  const auto say = [&answer](auto what) { return std::visit(what, answer); };
  bool begun = false;
  std::vector<RequestMetrics::Clock::time_point> pushed;
  if (stream) {
    const std::string first = say([](auto& a) { return a.head(); });
    const bool taken = co_await send_head(c, request, first, chunked);
    if (!taken) co_return false;
  }
  while (!generation.done()) {
    const std::chrono::steady_clock::duration longest = stream ? std::chrono::steady_clock::duration(options.limits.ping_interval) : kForever;
    const bool rang = co_await c.bell->wait(longest);
    if (c.bell->gone) co_return false;
    if (c.bell->abort || c.bell->cancel) generation.cancel();
    std::string events;
    pushed.clear();
    for (Delta& delta : generation.poll()) {
      seen.see(delta);
      if (delta.empty() && !(generation.request().continuous_usage && delta.drawn > 0)) continue;
      pushed.insert(pushed.end(), delta.pushed.begin(), delta.pushed.end());
      const bool cancelled = delta.finish == engine::FinishReason::cancelled;
      if (cancelled && c.bell->cancel && !c.bell->abort) std::get<ResponsesAnswer>(answer).cancelled();  // nothing else is cancelled by name
      else if (cancelled || delta.finish == engine::FinishReason::error) {
        const Refusal why = why_failed(generation.request(), delta);
        generation.cancel();
        settle(c, generation);
        say([&](auto& a) { a.add(delta); });
        const std::string told = say([&](auto& a) { return a.failed(why); });
        if (!stream) {
          HttpResponse response = refused(request, why, false);
          if (delta.late) response.set("x-should-retry", "false");  // OpenAI's clients repeat a 504 unless told that its end was asked for
          co_return co_await send(c, response);
        }
        events += told;
        co_await send_text(c, events, chunked);
        co_return false;
      }
      if (!stream) {
        say([&](auto& a) { a.add(delta); });
        continue;
      }
      if (!std::exchange(begun, true)) events += say([&](auto& a) { return a.begin(generation.usage()); });
      events += say([&](auto& a) { return a.events(delta); });
    }
    if (generation.done()) {
      settle(c, generation);
      const auto* response = std::get_if<ResponsesAnswer>(&answer);
      const std::string kept = response ? kept_id(c, response->id()) : "";
      if (response) co_await keep(kept, *response, generation);
    }
    if (stream && !rang && events.empty()) events = kSsePing;
    if (generation.done() && stream) events += say([&](auto& a) { return a.end(generation.usage()); });
    if (events.empty()) continue;
    const bool taken = co_await send_text(c, events, chunked);
    if (!taken) co_return false;
    if (stream) seen.sent(pushed);
  }
  const bool more = request.keep_alive() && !stopping;
  if (!stream) {
    HttpResponse response = respond(request, 200, say([&](auto& a) { return a.whole(generation.usage()); }), more);
    co_return co_await send(c, response);
  }
  if (!chunked) co_return false;
  const auto end = http::make_chunk_last();
  c.stream.tcp().expires_after(options.limits.write_timeout);
  auto [bad, n] = co_await asio::async_write(c.stream, end, kResult);
  co_return !bad && more;
}

}  // namespace winnow::server
