#pragma once
// A checkpoint of Megatron-core (torch_dist) as a target: a DCP directory in a folder for its iteration, the file that
// names the folder, and the state that ranks have in common.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/programs/dcp/dcp_target.hpp"
#include "lib/checkpoints/target/layout.hpp"

namespace fsdp {

class MegatronTarget final : public Target {
 public:
  /// \param folder  iter_0000500 or release; \param common  the bytes of common.pt; \param num_shards  number of ranks
  /// \throws RequestError as DcpTarget
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

/// FormatWriter::adapt() of Megatron-core: finds the model. \throws RequestError where it is not known, and for
/// matrices in 4 bits or in float8
void adapt_to_megatron(const Source& original, const Conversion& options, SourceChanges& changes, const Logger& log);

/// FormatWriter::make() of Megatron-core.
std::unique_ptr<Target> make_megatron_target(WriteRequest& request);

}  // namespace fsdp
