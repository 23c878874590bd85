#include "lib/training/evaluate/chat_session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {
namespace {

using Messages = nlohmann::ordered_json;

Messages message(const char* role, const std::string& content) {
  return Messages{{"role", role}, {"content", content}};
}

/// Removes the oldest user's message and what follows it up to the next. \return the number of messages
std::size_t drop_oldest_turn(Messages& turns) {
  std::size_t count = 1;
  while (count < turns.size() && turns[count]["role"] != "user") ++count;
  turns.erase(turns.begin(), iterator_at(turns, count));
  return count;
}

}  // namespace

ChatSession::ChatSession(ModelRuntime& runtime, const Tokenizer& tokenizer, ChatPrompts prompts,
                         SamplingOptions sampling)
    : runtime_(runtime), tokenizer_(tokenizer), prompts_(std::move(prompts)), sampling_(std::move(sampling)) {
  check_sampling(sampling_);
}

Messages ChatSession::messages_with(const Messages& turns) const {
  auto messages = Messages::array();
  if (system_) messages.push_back(message("system", *system_));
  messages.insert(messages.end(), turns.begin(), turns.end());
  return messages;
}

ChatAnswer ChatSession::ask(const std::string& user, const std::function<void(const std::string&)>& show,
                            const std::function<bool()>& interrupted) {
  const auto positions = longest_row(runtime_.decoder().config);
  const auto room = std::min(sampling_.num_tokens, std::max<std::int64_t>(positions / 4, 1));
  ChatAnswer answer;
  auto turns = turns_;
  turns.push_back(message("user", user));
  for (;;) {
    answer.prompt = prompts_.encoder().encode_prompt(messages_with(turns));
    const auto length = std::ssize(answer.prompt);
    if (length + room <= positions) break;
    if (turns.size() == 1) {
      throw FormatError(
          fmt::format("with this message the model would see {} tokens, and {} of its {} positions are "
                      "for the answer: say it in shorter words{}",
                      length, room, positions, system_ ? ", or shorten the system message" : ""));
    }
    answer.forgotten += drop_oldest_turn(turns);
  }
  auto sampling = sampling_;
  const auto left = positions - std::ssize(answer.prompt);
  sampling.num_tokens = std::min(sampling.num_tokens, left);
  sequence_.replace(answer.prompt);
  WrittenText text(tokenizer_, sampling.stops);
  const auto& ends = prompts_.ends();
  answer.ended = left < sampling_.num_tokens ? "context" : "length";
  answer.ids = generate(runtime_, sequence_, sampling, [&](std::int32_t id) {
    std::uint8_t is_interrupted = runtime_.world().rank() == 0 && interrupted() ? 1 : 0;
    runtime_.world().broadcast(std::as_writable_bytes(std::span(&is_interrupted, 1)), 0);
    const bool is_end = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (!is_end) show(text.add(id));
    if (is_end) {
      answer.ended = "eos";
    } else if (text.is_stopped()) {
      answer.ended = "stop";
    } else if (is_interrupted != 0) {
      answer.ended = "interrupted";
    } else {
      return true;
    }
    return false;
  });
  show(text.rest());
  answer.text = text.text();
  turns.push_back(message("assistant", json_text(answer.text).get<std::string>()));
  turns_ = std::move(turns);
  return answer;
}

}  // namespace fsdp
