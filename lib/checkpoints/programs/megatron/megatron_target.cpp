// Source: megatron-core 0.16 and 0.19 core/dist_checkpointing/core.py; Megatron-LM megatron/training/checkpointing.py.
#include "lib/checkpoints/programs/megatron/megatron_target.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/megatron/megatron_folder.hpp"
#include "lib/checkpoints/programs/megatron/megatron_source.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"

namespace fsdp {
namespace {

constexpr const char* kBackends =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", )"
    R"("common_backend_version": 1})";

/// The content of the file that names the folder: "500" for iter_0000500.
std::string tracker_of(const std::string& folder) {
  const auto digits = folder.find_first_not_of("iter_0");
  if (folder == "release") return folder;
  return digits == std::string::npos ? "0" : folder.substr(digits);
}

}  // namespace

MegatronTarget::MegatronTarget(std::string folder, std::string common, int num_shards)
    : folder_(std::move(folder)), common_(std::move(common)), dcp_({.num_shards = num_shards, .keep_pieces = true}) {}

Layout MegatronTarget::plan(const Source& source) {
  auto layout = dcp_.plan(source);
  for (auto& file : layout.files) file.name = folder_ / file.name;
  detail::add_known_file(layout, std::filesystem::path(folder_) / kMegatronCommon, common_);
  detail::add_known_file(layout, std::filesystem::path(folder_) / "metadata.json", kBackends);
  detail::add_known_file(layout, kMegatronTracker, tracker_of(folder_));
  return layout;
}

void adapt_to_megatron(const Source& original, const Conversion& /*options*/, SourceChanges& changes,
                       const Logger& log) {
  if (changes.quantize.enabled()) throw RequestError("Megatron-core has no matrices in 4 bits", Remedy::no_quantize);
  const bool changes_values = changes.dequantize || !changes.merge_adapter.empty();
  if (!changes_values && (!find_stored_nf4(original).empty() || !find_stored_fp8(original).empty()))
    throw RequestError(original.info().directory.string() +
                           ": has matrices in 4 bits, or in float8 with scales, which Megatron-core has not",
                       Remedy::dequantize);
  auto model = known_model(original, changes);
  std::error_code error;
  const auto beside = original.info().directory / "config.json";
  if (!model && std::filesystem::is_regular_file(beside, error)) model = read_model_config(beside);
  if (!model) throw RequestError("Megatron-core's checkpoints need the model's sizes", Remedy::model_config);
  if (!original.values().empty() && !changes.select.model_only)
    log.info("megatron holds a model and its optimizer: other values are left out");
  changes.as_megatron = std::move(*model);
}

std::unique_ptr<Target> make_megatron_target(WriteRequest& request) {
  const auto& tensors = request.source->tensors();
  const bool has_optimizer =
      std::ranges::any_of(tensors, [](const auto& tensor) { return tensor.name.starts_with("optimizer."); });
  const auto model = config_after_merge(*request.changes.as_megatron, *request.source, request.changes);
  auto beside = megatron_beside(request.original, model, tensors.front().dtype, has_optimizer);
  return std::make_unique<MegatronTarget>(std::move(beside.folder), std::move(beside.common),
                                          std::max(request.options.num_shards, 1));
}

}  // namespace fsdp
