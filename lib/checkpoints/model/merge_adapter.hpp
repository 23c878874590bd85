#pragma once
// Merges low-rank adapters into the matrices that they were trained for: --merge-adapter.
#include <filesystem>
#include <memory>
#include <optional>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Returns `base` with W + s B A in place of each matrix W that the adapter in `directory` belongs to. With DoRA the
/// rows of the sum are scaled to the lengths in lora_magnitude_vector. What modules_to_save and bias trained whole
/// takes the place of the base's; where one side of a tied head and embedding is changed, the result has both
/// (SourceInfo::unties_head); a head of scores takes the place of a language model's. Computes in float32 and rounds
/// once, as peft's merge_and_unload() does. Lazy: a range of a matrix is merged when it is read.
/// \param directory  with adapter_config.json and the weights, as peft and fsdp-finetune write them
/// \param result     type of the merged matrices; none: the type of the base matrix
/// \throws FormatError naming a tensor of the adapter whose shape does not fit the base; what plan_adapter() throws
std::unique_ptr<Source> merge_adapter(std::shared_ptr<const Source> base, const std::filesystem::path& directory,
                                      std::optional<DType> result = std::nullopt);

}  // namespace fsdp
