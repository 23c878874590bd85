#pragma once
// Checkpoints as the models here have them, whatever their files hold.
#include <filesystem>
#include <memory>
#include <optional>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// Whether it is a directory whose config.json says model_type gpt2.
bool is_gpt2_directory(const std::filesystem::path& path);
/// Whether it is one with matrices of [in, out] (Conv1D). In 4 bits they are [out, in] as everybody's, because
/// bitsandbytes' Linear4bit takes the place of Conv1D. \throws FormatError when they are quantised in a way not built
bool has_conv1d_matrices(const std::filesystem::path& path);

/// How a GPT-2's matrices lie, by attn.c_attn's, which is never square: true [in, out], false [out, in]; none where
/// there is no such matrix in numbers, as in 4 bits.
std::optional<bool> conv1d_layout(const Source& source);

/// The tensors of such a directory with the names and shapes of the minGPT that it is. \param path  for messages
/// \throws FormatError on a tensor that a GPT-2 does not have
std::unique_ptr<Source> gpt2_as_mingpt(std::shared_ptr<const Source> source, const std::filesystem::path& path);

/// open_source(); and a directory whose config.json says model_type gpt2 with the names and shapes of the minGPT that
/// it is: transformers' GPT-2 keeps its matrices transposed (Conv1D) and may leave out the prefix "transformer.".
/// \throws FormatError also on a tensor that a GPT-2 does not have
std::unique_ptr<Source> open_model_source(const std::filesystem::path& path);

}  // namespace fsdp
