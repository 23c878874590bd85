#pragma once
// Text that a model writes.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/eval/generate.hpp"
#include "lib/runtime/model_runtime.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace fsdp {

/// For JSON, which is UTF-8: what a model writes need not be, and is replaced where it is not.
nlohmann::json json_text(const std::string& text);

/// Continues a prompt until the model ends the text or `sampling` has enough. Collective.
/// \param print   writes prompt and text to stdout as it comes, on rank 0
/// \param report  receives prompt, text, tokens_generated and ended ("eos" or "length")
void write_text(ModelRuntime& runtime, const Tokenizer& tokenizer, const std::string& prompt,
                const SamplingOptions& sampling, bool print, nlohmann::json& report);

}  // namespace fsdp
