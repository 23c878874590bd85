#pragma once
// GPT-2's tokenizer: byte-level byte-pair encoding, built in or read from vocab.json and merges.txt.
#include <filesystem>
#include <memory>
#include <string_view>

#include "lib/tokenizers/files/tokenizer_config.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// GPT-2's own vocabulary of 50,257 ids, part of the program. bos and eos are both <|endoftext|>, 50256.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer();

/// Reads a vocabulary of this kind from the directory of a model.
/// \param vocab_json  {"piece": id, ...}, ids 0, 1, ... without gaps, all 256 bytes among the pieces
/// \param merges_txt  one merge "left right" per line, the most frequent first; lines "#version..." are skipped
/// \param config      marks and added tokens; by default <|endoftext|> is bos and eos, and no mark is added
/// \throws IoError when a file cannot be read; FormatError naming file, line or piece, and what was expected
std::unique_ptr<Tokenizer> make_byte_level_bpe(const std::filesystem::path& vocab_json,
                                               const std::filesystem::path& merges_txt,
                                               const TokenizerConfig& config = {});

namespace detail {

/// data/gpt2/merges.txt, unchanged; its source file is generated when the build is configured.
std::string_view gpt2_merges_text();

}  // namespace detail

}  // namespace fsdp
