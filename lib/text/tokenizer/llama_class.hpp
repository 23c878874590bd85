#pragma once
// A tokenizer.model as LlamaTokenizer of transformers 5.23 reads it: byte-pair merges that follow from the pieces, and
// Metaspace in place of the model's own normalizer.
//
// Source: models/llama/tokenization_llama.py, SentencePieceExtractor and generate_merges() of transformers 5.23.
#include <memory>
#include <string>
#include <vector>

#include "lib/text/tokenizer/metaspace_tokenizer.hpp"
#include "lib/text/tokenizer/sentencepiece_model.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp {

/// A model's pieces, without added tokens.
std::vector<LlamaPiece> llama_pieces(const SentencePieceModel& model);

/// Pieces, added tokens and marks, whoever encodes by them. \param where  the model's file
LlamaParts llama_parts(const SentencePieceModel& model, const TokenizerConfig& config,
                       const std::vector<AddedToken>& added, const std::string& where);

/// The files name LlamaTokenizer, and what is special about it tells: `legacy` is written, or tokens are added to the
/// model's. Else texts are encoded by the sentencepiece library, as the model alone says.
bool is_made_by_llama_class(const SentencePieceModel& model, const TokenizerConfig& config,
                            const std::vector<AddedToken>& added);

/// `legacy` true: a space is put before every part of a text between added tokens that has none; else before the text.
std::unique_ptr<Tokenizer> make_by_llama_class(const SentencePieceModel& model, const TokenizerConfig& config,
                                               std::vector<AddedToken> added, LlamaParts parts);

}  // namespace fsdp
