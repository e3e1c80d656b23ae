// The chat template that a checkpoint ships (Jinja), executed with the environment that transformers uses: trim_blocks,
// lstrip_blocks, loop controls, tojson with ensure_ascii. A template that cannot be parsed is an Error at start. Steps, output
// and recursion are bounded. Rendering keeps apart what the template wrote and what came from the messages, so that user
// text that looks like a control token stays text.
#pragma once

#include <boost/json/fwd.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace winnow::text {

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(std::string_view source, std::string_view where);
  // DIR/chat_template.jinja, else "chat_template" of DIR/tokenizer_config.json. bos_token and the like come from the latter.
  static Result<ChatTemplate> load(const std::string& dir);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `context`: messages, tools, add_generation_prompt and any template variables. Strings in it are untrusted.
  // An Error names the template line, or carries the message of raise_exception.
  Result<std::vector<Piece>> render(const boost::json::object& context) const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string joined(const std::vector<Piece>& pieces);

}  // namespace winnow::text
