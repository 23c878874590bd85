#pragma once
// A checkpoint of Megatron-core (torch_dist): a DCP directory for an iteration, and what its ranks have in common.
// Source: megatron-core 0.16 and 0.19 core/dist_checkpointing; Megatron-LM megatron/training/checkpointing.py.
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lib/checkpoints/source/pickle_node.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

inline constexpr const char* kMegatronTracker = "latest_checkpointed_iteration.txt";
inline constexpr const char* kMegatronCommon = "common.pt";

/// The DCP directory that DIRECTORY/latest_checkpointed_iteration.txt names (iter_0000500, or release); empty when
/// there is none.
std::filesystem::path megatron_iteration(const std::filesystem::path& directory);

/// True for a directory with a tracker file.
bool is_megatron_folder(const std::filesystem::path& directory);

/// Opens the iteration that the tracker names, under Megatron-core's names. \throws FormatError when it is not in the
/// format torch_dist, and as open_dcp(); IoError
std::unique_ptr<Source> open_megatron(const std::filesystem::path& directory);

/// The state that Megatron-core saves once for all ranks: args, the iteration, settings of the optimizer. It may name
/// any class; nothing is imported or called.
class MegatronCommon {
 public:
  /// \param dcp  from open_dcp(). \return nothing when it has neither the item common_state nor the file common.pt
  /// \throws FormatError, IoError
  static std::optional<MegatronCommon> of(const Source& dcp);

  const PickleNode& root() const { return root_; }
  std::shared_ptr<const PickleDocument> document() const { return {blob_, &blob_->document()}; }
  /// The attributes of args; nothing without them.
  std::optional<PickleNode> arguments() const;
  /// The number in an int, a float or a tensor of one element; nothing for anything else.
  std::optional<double> number(const PickleNode& node) const;

 private:
  MegatronCommon(std::shared_ptr<TorchBlob> blob, std::string file);

  std::shared_ptr<const TorchBlob> blob_;
  PickleNode root_;
};

}  // namespace fsdp
