#pragma once
// A checkpoint of Megatron-core (torch_dist) as a target: a DCP directory in a folder for its iteration, the file that
// names the folder, and the state that ranks have in common.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/files/write/dcp_target.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp {

class MegatronTarget final : public Target {
 public:
  /// \param folder  iter_0000500 or release; \param common  the bytes of common.pt; \param num_shards  number of ranks
  /// \throws UsageError as DcpTarget
  MegatronTarget(std::string folder, std::string common, int num_shards);

  bool is_directory() const override { return true; }
  /// Every stored piece of a tensor of the source (SourceTensor::num_shards, along dim 0) becomes a chunk: a rank of
  /// Megatron-core that needs one layer reads one layer.
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t> crcs) override { return dcp_.finish(crcs); }
  bool wants_checksums() const override { return true; }

 private:
  std::string folder_, common_;
  DcpTarget dcp_;
};

}  // namespace fsdp
