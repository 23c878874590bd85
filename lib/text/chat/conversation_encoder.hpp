#pragma once
// Samples of which only a part is to be learned, as token ids with a mask: conversations, and prompts with completions.
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

/// Ids, and for each 1 where it is to be learned.
struct MaskedIds {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
};

/// Immutable: any number of threads may use it. The tokenizer must outlive it.
class ConversationEncoder {
 public:
  /// \throws FormatError when the tokenizer has no token for a mark of the template
  ConversationEncoder(const Tokenizer& tokenizer, ConversationRules rules);

  /// A conversation: the whole text is encoded at once; the assistant's turns with their end marks count, a token that
  /// reaches into one from before it included.
  /// \param record  the sample; \param field  its list of messages
  /// \throws FormatError saying what of it cannot be
  MaskedIds encode_messages(const nlohmann::json& record, const std::string& field) const;

  /// Ids of a conversation that the assistant is to go on with, and none of its marks is doubled.
  /// \throws FormatError saying which message has no place in the template
  std::vector<std::int32_t> encode_prompt(const std::vector<ChatMessage>& messages) const;
  /// The id that ends an assistant's turn.
  std::int32_t turn_end() const;

  /// A document's marks, prompt, completion, the end mark: the last two count.
  /// \throws FormatError
  MaskedIds encode_pair(const nlohmann::json& record) const;

 private:
  const Tokenizer& tokenizer_;
  ConversationRules rules_;
};

}  // namespace fsdp
