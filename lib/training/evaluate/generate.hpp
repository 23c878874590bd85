#pragma once
// Text from a model: the same on every rank.
#include <ATen/core/Tensor.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/text/chat/conversation_encoder.hpp"
#include "lib/text/chat/conversation_options.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/training/evaluate/decode_step.hpp"

namespace fsdp {

struct SamplingOptions {
  std::int64_t num_tokens = 50;
  double temperature = 1.0;  ///< 0: the most likely token each time
  int top_k = 0;             ///< 0: all
  double top_p = 1.0;        ///< smallest set of most likely tokens that has this probability
  std::uint64_t seed = 0;
  bool no_cache = false;           ///< the whole sequence for every token, as a check
  std::vector<std::string> stops;  ///< texts that end the text and do not belong to it
};

/// \throws UsageError naming an option that is out of range
void check_sampling(const SamplingOptions& options);

/// Takes each new id on every rank. \return false to end the text there
using TokenSink = std::function<bool(std::int32_t id)>;

/// A text that is being written.
struct TextInWork {
  DecodedSequence sequence;
  std::int64_t left = 0;  ///< most tokens to come; 0 once it has ended
  std::uint64_t seed = 0;
  TokenSink on_token = {};
};

/// Gives write_texts() its texts.
class TextQueue {
 public:
  virtual ~TextQueue() = default;
  /// The next text of this rank, which lives until ended(); null: there is none.
  virtual TextInWork* next() = 0;
  virtual void ended(TextInWork& text) = 0;
  /// Called on every rank before each step. \param works  this rank has a text in work
  /// \return the same on all ranks: false ends write_texts()
  virtual bool goes_on(bool works) = 0;
};

/// The loop of all generation: goes on with at most `most` texts of each rank, one token each in a step; where one ends
/// the next begins. Collective. \pre check_sampling(), and ids of texts are the model's
/// \param same_texts  all ranks have the same ones: rank 0 draws each token and tells the others. False: each rank has
///                    its own, and what is written depends on neither the company of a text nor the number of ranks
///                    (but for rounding, which company does not change either if the runtime has RowwiseOps)
void write_texts(ModelRuntime& runtime, const SamplingOptions& options, std::size_t most, bool same_texts,
                 TextQueue& queue);

/// Continues a sequence (at least one id), whose new ids are appended and returned.
/// \throws as generate() of a prompt
std::vector<std::int32_t> generate(ModelRuntime& runtime, DecodedSequence& sequence, const SamplingOptions& options,
                                   const TokenSink& on_token = {});

/// Continues `prompt` (at least one id). Rank 0 draws each token and tells the others. Once the sequence is longer than
/// the model's positions, the last longest_row() ids are what the model sees, as minGPT does it.
/// Collective. \param on_token  must decide alike on all ranks; the id that ends the text is part of the result
/// \throws UsageError for an empty prompt, an id outside the vocabulary or options out of range
std::vector<std::int32_t> generate(ModelRuntime& runtime, std::vector<std::int32_t> prompt,
                                   const SamplingOptions& options, const TokenSink& on_token = {});

/// One id from logits [vocabulary] (float32, host), by options; `random` uniform in [0, 1). For tests.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double random);

// The tokens with which a model ends what it writes.

/// eos_token_id, a number or a list, where transformers' generate() looks for it: in generation_config.json of the
/// first directory that has this file or config.json, else in its config.json; of a GGUF file the ends of texts and
/// turns in its keys. Empty where nothing is said. \throws FormatError naming file and key for anything else than ids
std::vector<std::int32_t> generation_ends(const std::vector<std::filesystem::path>& directories);

// Text that a model writes.

/// For JSON, which is UTF-8: what a model writes need not be, and is replaced where it is not.
nlohmann::json json_text(const std::string& text);

/// The text and ids that a model continues.
struct Prompt {
  std::string text;                ///< as the user gave it
  std::string shown;               ///< what stands before the model's text where that is printed
  std::vector<std::int32_t> ids;   ///< of all that the model sees
  std::vector<std::int32_t> ends;  ///< tokens that end its text

  bool is_end(std::int32_t id) const { return std::find(ends.begin(), ends.end(), id) != ends.end(); }
};

/// A text that goes on, up to one of `ends` or the tokenizer's end mark.
/// \param ends  of the model: generation_ends()
Prompt plain_prompt(const Tokenizer& tokenizer, const std::string& text, std::vector<std::int32_t> ends);

/// Continues a prompt until the model ends the text or `sampling` has enough. Collective.
/// \param print   writes prompt and text to stdout as it comes, on rank 0
/// \param report  receives prompt, prompt_tokens, text, tokens_generated and ended ("eos": by one of `ends`, "stop": by
///                one of sampling.stops, "length")
void write_text(ModelRuntime& runtime, const Tokenizer& tokenizer, const Prompt& prompt,
                const SamplingOptions& sampling, bool print, nlohmann::json& report);

// A question as a model of conversations sees it.

struct ChatQuestion {
  std::string user;                   ///< what the user says
  std::optional<std::string> system;  ///< what the system says before, perhaps ""; nothing: templates may have words
};

/// Writes conversations by the chat template, for an answer to follow.
class ChatPrompts {
 public:
  /// As chat_prompt(). \param tokenizer  must outlive this object
  ChatPrompts(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
              std::vector<std::int32_t> ends);
  Prompt question(const ChatQuestion& question) const;
  const ConversationEncoder& encoder() const { return encoder_; }
  /// Tokens that end an answer.
  const std::vector<std::int32_t>& ends() const { return ends_; }

 private:
  ConversationEncoder encoder_;
  std::vector<std::int32_t> ends_;
};

/// The question by the chat template, up to where the assistant's answer begins; that ends with its turn or the text,
/// or by one of `ends`.
/// \param tokenizer_name  "gpt2" or the directory that the tokenizer came from
/// \param ends            of the model: generation_ends()
/// \throws what find_chat_template() and encoding throw
Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends);

}  // namespace fsdp
