#pragma once
// Options for the encoding of conversations and of prompts with completions.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/types/named_values.hpp"

namespace fsdp {

/// The kind of samples in a data file.
enum class DataForm : std::uint8_t {
  automatic,          ///< decided by the keys or columns of the file
  text,               ///< a string, or a list of strings
  prompt_completion,  ///< `prompt` and `completion`: strings, or lists of messages
  messages,           ///< a list of {"role": ..., "content": ...}
  preference,         ///< `chosen` and `rejected`, with or without `prompt`: strings, or lists of messages
  label               ///< `label` beside a text or `messages`. Never decided by keys
};

inline constexpr std::array kDataFormNames{NamedValue<DataForm>{"auto", DataForm::automatic},
                                           NamedValue<DataForm>{"text", DataForm::text},
                                           NamedValue<DataForm>{"prompt-completion", DataForm::prompt_completion},
                                           NamedValue<DataForm>{"messages", DataForm::messages},
                                           NamedValue<DataForm>{"preference", DataForm::preference},
                                           NamedValue<DataForm>{"label", DataForm::label}};

/// A model's head, which decides the targets of samples.
enum class HeadKind : std::uint8_t {
  next_token,
  classify,  ///< a label, of samples of the form `label`
  reward     ///< a number, greater for the chosen side of a preference than for the rejected one
};
inline constexpr std::array kHeadNames{NamedValue<HeadKind>{"next-token", HeadKind::next_token},
                                       NamedValue<HeadKind>{"classify", HeadKind::classify},
                                       NamedValue<HeadKind>{"reward", HeadKind::reward}};

/// Treatment of the name of a special token inside a message, a prompt or a completion.
enum class MarksInTexts : std::uint8_t {
  tokens,     ///< becomes the token, as in transformers
  plain_text  ///< encoded as text; only the template writes marks
};

inline constexpr std::array kMarkNames{NamedValue<MarksInTexts>{"plain", MarksInTexts::plain_text},
                                       NamedValue<MarksInTexts>{"tokens", MarksInTexts::tokens}};

/// Encoding of a prompt and its completion.
enum class PairEncoding : std::uint8_t {
  joint,    ///< as one text; as many of its first ids as the prompt alone has are the prompt's (as TRL)
  separate  ///< each as a text of its own
};
inline constexpr std::array kPairEncodingNames{NamedValue<PairEncoding>{"joint", PairEncoding::joint},
                                               NamedValue<PairEncoding>{"separate", PairEncoding::separate}};

/// The part of a sample that the loss counts. By default answers: completions, and the assistant's turns with their end
/// marks. All ids of plain texts count.
enum class TrainOn : std::uint8_t { answers, all };
inline constexpr std::array kTrainOnNames{NamedValue<TrainOn>{"all", TrainOn::all},
                                          NamedValue<TrainOn>{"answers", TrainOn::answers}};

/// The part of a preference's side that is kept where it is too long.
enum class Truncation : std::uint8_t { keep_start, keep_end };
inline constexpr std::array kTruncationNames{NamedValue<Truncation>{"keep-end", Truncation::keep_end},
                                             NamedValue<Truncation>{"keep-start", Truncation::keep_start}};

/// Options for conversations, prompts with completions and preferences; plain texts ignore them.
struct ConversationOptions {
  DataForm form = DataForm::automatic;
  TrainOn train_on = TrainOn::answers;
  std::string chat_template;   ///< a name, a file or a directory; empty: the model's, or else the tokenizer's own
  std::string model_template;  ///< text of the template that the model was trained with; empty: not known
  MarksInTexts marks = MarksInTexts::tokens;
  PairEncoding pairs = PairEncoding::joint;
  std::int64_t max_prompt_length = 0;  ///< ids at the end of a preference's prompt that are kept; 0: all
  Truncation truncation = Truncation::keep_start;
  /// The one target of a text that is scored follows its last id: the number of its label, or of a reward 0.
  HeadKind head = HeadKind::next_token;
  std::vector<std::string> labels = {};  ///< of classify, in the order of their numbers
  std::int64_t padding_id = -1;          ///< ids at the end of a text that are left out before its target; -1: none
  /// Samples are prompts with one answer each and a `label`, or preferences, whose sides are answers with a label each:
  /// an id that is no target follows the last one, 1 for an answer that is wanted, else 0.
  bool judged = false;
};

}  // namespace fsdp
