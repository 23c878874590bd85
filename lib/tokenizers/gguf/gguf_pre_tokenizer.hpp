#pragma once
// llama.cpp's names of pre-tokenizers, which split texts into words before merges. Source: llama-vocab.cpp
// (llm_tokenizer_bpe).
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lib/tokenizers/files/json_file.hpp"

namespace fsdp {

/// llama.cpp's name of a pre-tokenizer that splits as this one of tokenizer.json does; nothing when none is known.
std::optional<std::string> gguf_pre_name(const JsonValue& pre_tokenizer, bool ignores_merges);

/// The parts of tokenizer.json that a name stands for.
struct GgufPreTokenizer {
  nlohmann::json steps;       ///< "pre_tokenizer"
  nlohmann::json normalizer;  ///< null, or NFC for Qwen's
  bool ignores_merges = false;
  bool adds_bos = false;  ///< where the file does not say
};
/// The reverse of gguf_pre_name(). Nothing for a name that is not known.
std::optional<GgufPreTokenizer> gguf_pre_tokenizer(const std::string& name);
/// The names that gguf_pre_tokenizer() knows, for messages.
std::string gguf_pre_names();

}  // namespace fsdp
