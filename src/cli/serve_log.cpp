#include "cli/serve_log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <ctime>

#include "base/json_writer.h"

namespace winnow::cli {
namespace {

constexpr size_t kWaiting = 8192;  // lines
constexpr const char* kAccess = "access";

class JsonLines : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& m, spdlog::memory_buf_t& to) override {
    using std::chrono::milliseconds;
    const int64_t ms = std::chrono::duration_cast<milliseconds>(m.time.time_since_epoch()).count();
    const std::time_t s = static_cast<std::time_t>(ms / 1000);
    std::tm t{};
    ::gmtime_r(&s, &t);
    const std::string time = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour, t.tm_min,
                                         t.tm_sec, ms % 1000);
    const std::string_view level(spdlog::level::to_string_view(m.level).data(), spdlog::level::to_string_view(m.level).size());
    const std::string_view text(m.payload.data(), m.payload.size());
    const bool access = std::string_view(m.logger_name.data(), m.logger_name.size()) == kAccess;
    std::string rest(text);
    if (!access) {
      JsonWriter w;
      rest = "\"message\":" + w.value(text).take();
    }
    fmt::format_to(std::back_inserter(to), "{{\"time\":\"{}\",\"level\":\"{}\",\"event\":\"{}\",{}}}\n", time, level, access ? "request" : "log",
                   rest);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonLines>(); }
};

}  // namespace

ServeLog::ServeLog(bool json) {
  const auto before = spdlog::default_logger();
  spdlog::init_thread_pool(kWaiting, 1);
  const auto make = [&](const char* name) {
    auto logger = std::make_shared<spdlog::async_logger>(name, before->sinks().begin(), before->sinks().end(), spdlog::thread_pool(),
                                                         spdlog::async_overflow_policy::overrun_oldest);
    logger->set_level(before->level());
    return logger;
  };
  if (json)
    for (const auto& sink : before->sinks()) sink->set_formatter(std::make_unique<JsonLines>());
  spdlog::drop(before->name());
  spdlog::set_default_logger(make("winnow"));
  const auto access = make(kAccess);
  if (!json)
    for (const auto& sink : access->sinks()) sink->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  spdlog::register_logger(access);
}

ServeLog::~ServeLog() {
  const std::vector<spdlog::sink_ptr> sinks = spdlog::default_logger()->sinks();
  spdlog::shutdown();  // waits for the thread
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("winnow", sinks.begin(), sinks.end()));
}

}  // namespace winnow::cli
