#pragma once
// Encodes samples of which only a part is a target: conversations, and prompts with completions.
#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/templates/chat/chat_template.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

struct ConversationRules {
  std::shared_ptr<const ChatTemplate> chat;  ///< needed for messages, those of prompts and completions, too
  MarksInTexts marks = MarksInTexts::tokens;
  PairEncoding pairs = PairEncoding::joint;
  TrainOn train_on = TrainOn::answers;
};

/// Ids, and a mask: 1 for each id that is a target.
struct MaskedIds {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
};

/// Where the answers of a conversation are in its text: the byte ranges that {% generation %} encloses; for a template
/// without these marks, what an answer adds to the text of the messages before it and the header that follows them.
/// \param whole  the rendering of all messages
/// \throws FormatError naming an answer for which the latter is ambiguous: the template changes what stands before it
std::vector<TextRange> find_answers(const ChatTemplate& chat, const Conversation& conversation, const JinjaText& whole);

/// Immutable: any number of threads may use one object. The tokenizer must outlive it.
class ConversationEncoder {
 public:
  /// \throws FormatError when the template ends an answer with a mark for which the tokenizer has no token
  ConversationEncoder(const Tokenizer& tokenizer, ConversationRules rules);

  /// Encodes a conversation as one text. The assistant's answers are targets, including a token that begins before an
  /// answer and ends in it. A line end that a template without {% generation %} writes after a mark is none.
  /// \param record  the sample
  /// \param field   key of its list of messages
  /// \throws FormatError naming the problem
  MaskedIds encode_messages(const nlohmann::ordered_json& record, const std::string& field) const;

  /// Encodes a text with the marks of a document around it. Names of special tokens in it are as
  /// ConversationRules::marks says.
  std::vector<std::int32_t> encode_text(const std::string& text) const;

  /// Returns the ids of a conversation that the assistant continues; marks are not doubled.
  /// \throws FormatError naming the message that has no place in the template
  std::vector<std::int32_t> encode_prompt(const nlohmann::ordered_json& messages) const;
  /// The same of a record's conversation, with its tools. \param record, field  as of encode_messages()
  /// \throws FormatError also when the conversation has no message or ends with an answer
  std::vector<std::int32_t> encode_prompt(const nlohmann::ordered_json& record, const std::string& field) const;
  /// Returns the id that ends an assistant's turn, if the template ends it with one.
  std::optional<std::int32_t> turn_end() const { return turn_end_.id; }
  /// False if the loss counts answers and nothing after them, so that a model does not learn to end its turn.
  bool learns_turn_ends() const;

  /// Encodes marks of a document, prompt, completion, end mark; the last two are targets. Of a prompt and a completion
  /// that are lists of messages it encodes what the template writes; all after the prompt, which ends with the header
  /// of an answer, are targets.
  /// \throws FormatError
  MaskedIds encode_pair(const nlohmann::ordered_json& record) const;

  /// Both sides of a preference: prompt and answer, and the end mark of texts. The prompt is what its ids alone, and
  /// those of both sides, have in common; all after it are targets. Source: DPOTrainer of TRL 1.16. \throws FormatError
  std::array<MaskedIds, 2> encode_preference(const nlohmann::ordered_json& record) const;
  /// Both sides as answers of their own, each as encode_answer() has it. \throws FormatError
  std::array<MaskedIds, 2> encode_sides(const nlohmann::ordered_json& record) const;
  /// A prompt and a completion, of which all ids are targets after those that the prompt alone has, too. Source:
  /// KTOTrainer of TRL 1.16. \throws FormatError
  MaskedIds encode_answer(const nlohmann::ordered_json& record) const;

 private:
  /// How many of the first ids are the prompt's.
  enum class PromptEnd { as_many_as_alone, where_they_part };
  /// The token that a template writes after an answer, and its name.
  struct TurnEnd {
    std::optional<std::int32_t> id = {};
    std::string text = {};
  };
  /// A conversation as the template gets it.
  struct Prepared : Conversation {
    char32_t guard;  ///< stands in names of special tokens that are plain text; 0: in none
  };

  TurnEnd find_turn_end(const ChatTemplate& chat) const;
  Prepared prepared(Conversation conversation) const;
  MaskedIds encode_message_pair(const nlohmann::ordered_json& record) const;
  MaskedIds encode_pair(const nlohmann::ordered_json& record, PromptEnd prompt_end) const;
  std::vector<std::int32_t> prompt_ids(Conversation conversation) const;
  void check_is_said(const Conversation& conversation, const std::string& text) const;
  std::string guarded(const std::string& text, char32_t guard) const;
  nlohmann::ordered_json guarded(const nlohmann::ordered_json& value, char32_t guard) const;

  const Tokenizer& tokenizer_;
  ConversationRules rules_;
  TurnEnd turn_end_, tools_turn_end_;  ///< of the template, and of the one for conversations with tools
};

}  // namespace fsdp
