#pragma once
// tokenizer.model of Llama's, Mistral's and Gemma's kind, encoded by the SentencePiece library.
#include <filesystem>
#include <memory>

#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp {

/// \param config  which marks a document gets (default: the beginning mark alone) and the added tokens. Those that are
///                special are never found in texts, the others are, with a text of its own on either side; their ids
///                decode to their names. Control pieces decode to nothing.
/// \throws IoError; FormatError naming the file and what is wrong with it
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model,
                                                        const TokenizerConfig& config = {});

}  // namespace fsdp
