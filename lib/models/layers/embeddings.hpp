#pragma once
// The first layer of a decoder.
#include <memory>
#include <string>

#include "lib/models/layers/decoder.hpp"

namespace fsdp::detail {

/// Embeddings of tokens, without positions. \param module  such as model.embed_tokens
std::unique_ptr<Layer> make_token_embedding(const Ops& ops, const Decoder& decoder, const std::string& module);

/// The sum of the embeddings of tokens and of positions, with the model's dropout. \param tokens, positions  modules
std::unique_ptr<Layer> make_sum_embedding(const Ops& ops, const Decoder& decoder, const std::string& tokens,
                                          const std::string& positions);

}  // namespace fsdp::detail
