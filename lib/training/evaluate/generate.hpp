#pragma once
// Text from a model: the same on every rank.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"
#include "lib/training/evaluate/decode_step.hpp"
#include "lib/training/evaluate/prompt.hpp"
#include "lib/training/evaluate/sampling.hpp"

namespace fsdp {

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

/// The loop of all generation: goes on with `most` texts of each rank, one token each in a step; where one ends the
/// next begins, at most `most` in a step. Where texts are short, more are in work at once, in the memory of `most` long
/// ones. Collective. \pre check_sampling(), and ids of texts are the model's \param same_texts  all ranks have the same
/// ones: rank 0 draws each token and tells the others. False: each rank has
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
/// \throws RequestError for an empty prompt, an id outside the vocabulary or options out of range
std::vector<std::int32_t> generate(ModelRuntime& runtime, std::vector<std::int32_t> prompt,
                                   const SamplingOptions& options, const TokenSink& on_token = {});

/// Continues a prompt until the model ends the text or `sampling` has enough. Collective.
/// \param print   writes prompt and text to stdout as it comes, on rank 0
/// \param report  receives prompt, prompt_tokens, text, tokens_generated and ended ("eos": by one of `ends`, "stop": by
///                one of sampling.stops, "length")
void write_text(ModelRuntime& runtime, const Tokenizer& tokenizer, const Prompt& prompt,
                const SamplingOptions& sampling, bool print, nlohmann::json& report);

}  // namespace fsdp
