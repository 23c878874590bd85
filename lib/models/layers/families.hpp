#pragma once
// The layers of each kind of decoder, composed of the parts in this folder. Each is in a file of its own.
#include "lib/models/layers/decoder.hpp"

namespace fsdp::detail {

// Add embedding, blocks and head. \pre the decoder's `parameters` and `config` are set
// \throws RequestError on a setting that these layers do not have

void add_mingpt_layers(Decoder& decoder, const Ops& ops);
void add_llama_layers(Decoder& decoder, const Ops& ops);
void add_falcon_layers(Decoder& decoder, const Ops& ops);

}  // namespace fsdp::detail
