#pragma once
// Low-rank adapters become part of the matrices that they were trained beside: --merge-adapter.
#include <filesystem>
#include <memory>
#include <optional>

#include "lib/base/dtype.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp {

/// `base` with W + s B A in place of each matrix W that the adapter in `directory` belongs to (DoRA: the rows of that
/// have the lengths in lora_magnitude_vector), as peft's merge_and_unload() computes it, in float32, rounded once.
/// Stays lazy: a range of a matrix is merged when it is read.
/// \param directory  with adapter_config.json and the weights, as peft and fsdp-finetune write them
/// \param result     type of the merged matrices; none: that of the base's
/// \throws FormatError naming a tensor of the adapter of another shape than the base needs; what plan_adapter() throws
std::unique_ptr<Source> merge_adapter(std::shared_ptr<const Source> base, const std::filesystem::path& directory,
                                      std::optional<DType> result = std::nullopt);

}  // namespace fsdp
