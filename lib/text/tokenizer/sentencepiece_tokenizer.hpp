#pragma once
// tokenizer.model of Llama's, Mistral's and Gemma's kind, encoded by the SentencePiece library.
#include <filesystem>
#include <memory>

#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp {

/// \param config  marks of documents (default: only the beginning mark) and added tokens. Special added tokens are
///   never found in texts; the others are, and the text on either side of one is encoded by itself. Ids of added tokens
///   decode to their names, control pieces to nothing.
/// \throws IoError; FormatError naming the file and the problem
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model,
                                                        const TokenizerConfig& config = {});

}  // namespace fsdp
