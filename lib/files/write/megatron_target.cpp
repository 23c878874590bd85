// Source: megatron-core 0.16 and 0.19 core/dist_checkpointing/core.py; Megatron-LM megatron/training/checkpointing.py.
#include "lib/files/write/megatron_target.hpp"

#include <utility>

#include "lib/files/read/megatron_folder.hpp"
#include "lib/files/write/safetensors_target.hpp"

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

}  // namespace fsdp
