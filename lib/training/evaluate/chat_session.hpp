#pragma once
// A conversation with a model: the turns so far, and the next answer.
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/prompt.hpp"

namespace fsdp {

/// An answer of a model, and why it ended.
struct ChatAnswer {
  std::string text;
  std::vector<std::int32_t> prompt;  ///< ids of all that the model saw
  std::vector<std::int32_t> ids;     ///< that it wrote, with the one that ended the turn
  std::string ended;          ///< "eos", "stop", "length", "context" (the model has no more positions) or "interrupted"
  std::size_t forgotten = 0;  ///< oldest messages that were dropped, because the context had no room for them
};

class ChatSession {
 public:
  /// \param tokenizer  must outlive this object, as the runtime
  /// \param sampling   num_tokens of each answer
  ChatSession(ModelRuntime& runtime, const Tokenizer& tokenizer, ChatPrompts prompts, SamplingOptions sampling);

  /// Forgets all turns, but not the system message.
  void reset() { turns_ = nlohmann::ordered_json::array(); }
  /// The system message from the next answer on; nothing: templates may have words of their own.
  void set_system(std::optional<std::string> text) { system_ = std::move(text); }

  /// Adds the user's message, and writes and keeps the answer, also one that is interrupted. Where the context has no
  /// room for an answer of num_tokens, or of a quarter of the context, the oldest turns are dropped for good. Of what
  /// is cached, all that the new conversation begins with is used again. Collective.
  /// \param show         gets the answer as it comes, in whole characters, on every rank
  /// \param interrupted  asked on rank 0 after each token: true ends the answer
  /// \throws FormatError where the template refuses the turn, or the model has no room for this message alone; the
  ///         conversation then stays as it was
  ChatAnswer ask(const std::string& user, const std::function<void(const std::string&)>& show,
                 const std::function<bool()>& interrupted);

 private:
  nlohmann::ordered_json messages_with(const nlohmann::ordered_json& turns) const;

  ModelRuntime& runtime_;
  const Tokenizer& tokenizer_;
  ChatPrompts prompts_;
  SamplingOptions sampling_;
  std::optional<std::string> system_;
  nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();  ///< messages of user and assistant
  DecodedSequence sequence_;
};

}  // namespace fsdp
