#pragma once
// Opens a checkpoint for a conversion, or to compare or show it, and applies the changes.
#include <filesystem>
#include <memory>

#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Opens a checkpoint. For a local state whose shapes are known the source has the original parameters; for a model of
/// Megatron-core, unless NameMap::none is given, those of transformers.
/// \param must_unflatten  throw for a local state without known shapes, and for a model of Megatron-core that is no
/// dense Llama or Qwen, instead of returning what is stored \throws RequestError naming what gives shapes; what
/// open_source(), un_flatten() and megatron_as_hf() throw
std::shared_ptr<const Source> open_input(const std::filesystem::path& path, const SourceChanges& changes,
                                         bool must_unflatten);

/// Refuses a source in which no tensor has an element.
/// \param original  the source that `source` is a part of, to name files of DeepSpeed in the message
/// \throws FormatError
void refuse_nothing(const Source& source, const Source& original, const std::filesystem::path& path);

/// Applies the changes in this order: dequantize, merge_adapter, select, map, as_megatron, dtype, quantize.
std::shared_ptr<const Source> transformed(std::shared_ptr<const Source> source, const SourceChanges& changes);

}  // namespace fsdp
