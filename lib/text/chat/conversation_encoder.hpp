#pragma once
// Encodes samples of which only a part is a target: conversations, and prompts with completions.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/text/chat/chat_template.hpp"
#include "lib/text/chat/conversation_options.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

struct ConversationRules {
  std::optional<ChatTemplate> chat;  ///< needed for messages
  MarksInTexts marks = MarksInTexts::tokens;
  PairEncoding pairs = PairEncoding::joint;
};

/// Ids, and a mask: 1 for each id that is a target.
struct MaskedIds {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
};

/// Immutable: any number of threads may use one object. The tokenizer must outlive it.
class ConversationEncoder {
 public:
  /// \throws FormatError when the tokenizer has no token for a mark of the template
  ConversationEncoder(const Tokenizer& tokenizer, ConversationRules rules);

  /// Encodes a conversation as one text. The assistant's turns with their end marks are targets, including a token that
  /// begins before a turn and ends in it.
  /// \param record  the sample
  /// \param field   key of its list of messages
  /// \throws FormatError naming the problem
  MaskedIds encode_messages(const nlohmann::json& record, const std::string& field) const;

  /// Returns the ids of a conversation that the assistant continues; marks are not doubled.
  /// \throws FormatError naming the message that has no place in the template
  std::vector<std::int32_t> encode_prompt(const std::vector<ChatMessage>& messages) const;
  /// Returns the id that ends an assistant's turn.
  std::int32_t turn_end() const;

  /// Encodes marks of a document, prompt, completion, end mark; the last two are targets.
  /// \throws FormatError
  MaskedIds encode_pair(const nlohmann::json& record) const;

 private:
  const Tokenizer& tokenizer_;
  ConversationRules rules_;
};

}  // namespace fsdp
