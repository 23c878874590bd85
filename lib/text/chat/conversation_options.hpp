#pragma once
// Options for how prompts with completions, and conversations, become ids.
#include <array>
#include <cstdint>
#include <string>

#include "lib/base/named_values.hpp"

namespace fsdp {

/// The kind of samples in a data file.
enum class DataForm : std::uint8_t {
  automatic,          ///< by the keys or columns that are there
  text,               ///< a string, or a list of strings
  prompt_completion,  ///< strings `prompt` and `completion`
  messages            ///< a list of {"role": ..., "content": ...}
};

inline constexpr std::array kDataFormNames{NamedValue<DataForm>{"auto", DataForm::automatic},
                                           NamedValue<DataForm>{"text", DataForm::text},
                                           NamedValue<DataForm>{"prompt-completion", DataForm::prompt_completion},
                                           NamedValue<DataForm>{"messages", DataForm::messages}};

/// The meaning of a special token's name inside a message, a prompt or a completion.
enum class MarksInTexts : std::uint8_t {
  tokens,     ///< the token, as transformers reads it
  plain_text  ///< its characters: only what the template writes is a mark
};

inline constexpr std::array kMarkNames{NamedValue<MarksInTexts>{"plain", MarksInTexts::plain_text},
                                       NamedValue<MarksInTexts>{"tokens", MarksInTexts::tokens}};

/// How a prompt and its completion become ids.
enum class PairEncoding : std::uint8_t {
  joint,    ///< as one text; as many of its first ids as the prompt alone has are the prompt's, as TRL counts
  separate  ///< each by itself
};
inline constexpr std::array kPairEncodingNames{NamedValue<PairEncoding>{"joint", PairEncoding::joint},
                                               NamedValue<PairEncoding>{"separate", PairEncoding::separate}};

/// The part of a sample that the loss counts. By default answers: completions and the assistant's turns with their end
/// marks; of texts always everything.
enum class TrainOn : std::uint8_t { answers, all };
inline constexpr std::array kTrainOnNames{NamedValue<TrainOn>{"all", TrainOn::all},
                                          NamedValue<TrainOn>{"answers", TrainOn::answers}};

/// How prompts with completions and conversations are read; nothing of it concerns texts.
struct ConversationOptions {
  DataForm form = DataForm::automatic;
  TrainOn train_on = TrainOn::answers;
  std::string chat_template;  ///< a name, a file or a directory; empty: the tokenizer's own
  MarksInTexts marks = MarksInTexts::tokens;
  PairEncoding pairs = PairEncoding::joint;
};

}  // namespace fsdp
