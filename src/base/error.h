// The three ways in which something goes wrong (docs/architecture.md, Errors).
//
//   check(cond, "...")   our own bug: prints message, file and line, and aborts. No user input may reach one.
//   throw Error          the program cannot start or the device is lost; caught in main and at the top of the engine loop.
//   Result<T>            one piece of input or one request fails; the caller decides.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace winnow {

// Exit codes of the program, and what an Error means.
enum class Failure : int { work = 1, usage = 2, cannot_run = 3 };

// One line for a person: what is wrong, where (file, field, flag), and what to do about it.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, Failure kind = Failure::cannot_run) : std::runtime_error(message), kind_(kind) {}
  Failure kind() const { return kind_; }

 private:
  Failure kind_;
};

template <class... A>
Error error(fmt::format_string<A...> f, A&&... a) {
  return Error(fmt::format(f, std::forward<A>(a)...));
}

// A value or the Error that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::move(value)) {}
  Result(Error e) : v_(std::move(e)) {}
  explicit operator bool() const { return v_.index() == 0; }
  T& operator*() & { return std::get<0>(v_); }
  const T& operator*() const& { return std::get<0>(v_); }
  T&& operator*() && { return std::get<0>(std::move(v_)); }
  T* operator->() { return &std::get<0>(v_); }
  const T* operator->() const { return &std::get<0>(v_); }
  const Error& error() const { return std::get<1>(v_); }
  T or_throw() && {
    if (!*this) throw error();
    return std::get<0>(std::move(v_));
  }

 private:
  std::variant<T, Error> v_;
};

[[noreturn]] void check_failed(std::string_view message, std::source_location where);

inline void check(bool condition, std::string_view message, std::source_location where = std::source_location::current()) {
  if (!condition) [[unlikely]]
    check_failed(message, where);
}

}  // namespace winnow
