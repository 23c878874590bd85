#pragma once
// Llama's tokenizer.model, encoded by the SentencePiece library.
#include <filesystem>
#include <memory>

#include "lib/tokenizer/tokenizer.hpp"
#include "lib/tokenizer/tokenizer_config.hpp"

namespace fsdp {

/// \param config  which marks a document gets (default: the beginning mark alone) and the added tokens. Those are never
///                found in texts; their ids decode to their names. Control pieces decode to nothing.
/// \throws IoError; FormatError naming the file and what is wrong with it
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model,
                                                        const TokenizerConfig& config = {});

}  // namespace fsdp
