#pragma once
// The ids of requests to a model.
//
// Source: lm_eval/api/model.py (TemplateLM) and models/huggingface.py of 0.4.13.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// Ids that are scored, after ids that the model has seen. Neither is empty.
struct ScoredIds {
  std::vector<std::int32_t> context, continuation;
  bool was_cut = false;  ///< ids are missing at the context's beginning
};

class RequestEncoder {
 public:
  /// \param tokenizer  must outlive this object \param positions  the model's longest input
  /// \throws RequestError when the tokenizer has neither a beginning nor an end mark
  RequestEncoder(const Tokenizer& tokenizer, std::int64_t positions);

  /// White space at the context's end goes to the continuation; ids are cut on the left.
  /// \throws FormatError when nothing is left to score, or more than the model takes
  ScoredIds pair(std::string context, std::string continuation) const;
  /// A page in windows, each id scored once.
  std::vector<ScoredIds> windows(std::string_view page) const;
  /// The last ids of a prompt that leave room for `most` new ones. \param was_cut  set to whether ids are missing
  /// \throws FormatError when the model has no room for these
  std::vector<std::int32_t> prompt(std::string_view text, std::int64_t most, bool& was_cut) const;

 private:
  std::vector<std::int32_t> encoded(std::string_view text, bool with_marks) const;

  const Tokenizer& tokenizer_;
  std::int64_t positions_;
  std::int32_t prefix_;  ///< stands before an empty context
  std::string prefix_text_;
};

}  // namespace fsdp
