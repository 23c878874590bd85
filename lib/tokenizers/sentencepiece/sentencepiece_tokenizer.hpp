#pragma once
// tokenizer.model of Llama's, Mistral's and Gemma's kind, encoded as by the SentencePiece library.
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// \param config  marks of documents (default: only the beginning mark) and added tokens. Special added tokens are
///   never found in texts; the others are, and the text on either side of one is encoded by itself. Ids of added tokens
///   decode to their names, control pieces to nothing.
/// \throws IoError; FormatError naming the file and the problem
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::filesystem::path& model,
                                                        const TokenizerConfig& config = {});

/// Files with which `transformers` 4 and 5 give the ids of a folder's tokenizer.model, without sentencepiece.
struct FastTokenizerFiles {
  std::map<std::string, std::string> files;  ///< tokenizer.json and tokenizer_config.json
  std::string missing;                       ///< why there are none: what only tokenizer.model can say
};
/// The files give the same ids for texts with every piece, which is tried. Names of user-defined pieces inside a text
/// are found as by transformers' own conversion: spelled as in the model, with a space put after them.
/// \param directory  holds tokenizer.model
/// \throws as make_sentencepiece_tokenizer()
FastTokenizerFiles fast_files_of_sentencepiece(const std::filesystem::path& directory);

/// Texts of the pieces that the model itself has for "bos_token", "eos_token" and "unk_token"; only those it has.
/// \throws as make_sentencepiece_tokenizer()
std::map<std::string, std::string> marks_of_sentencepiece(const std::filesystem::path& model);

}  // namespace fsdp
