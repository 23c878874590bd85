// Uses a symbol of every library that must stay free of LibTorch: a converter or a token writer needs all libraries
// that ldd lists for this program.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/convert/inspect.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/reports/plots/loss_curve.hpp"
#include "lib/token_files/token_file.hpp"
#include "lib/tokenizers/bpe/byte_level_bpe.hpp"

namespace {

/// \param tokens   an HDF5 token file
/// \param scratch  an existing directory to write to
void use_all(const std::filesystem::path& tokens, const std::filesystem::path& scratch) {
  const auto rows = fsdp::open_token_file(tokens);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows->row_length()));
  rows->read(0, ids);
  std::printf("%s\n", fsdp::make_gpt2_tokenizer()->decode(ids).c_str());

  const std::int64_t parameters = fsdp::num_parameters(fsdp::parameter_table(fsdp::ModelConfig{}));
  std::printf("%lld parameters\n", static_cast<long long>(parameters));

  fsdp::write_safetensors(scratch / "empty.safetensors", {}, {});
  std::printf("%s", fsdp::inspection_table(fsdp::inspect(*fsdp::open_source(scratch / "empty.safetensors"))).c_str());
  std::printf("%d rank\n", fsdp::make_single_group()->size());
  fsdp::DcpShardWriter writer(scratch, 0);
  writer.add_value("answer", {"answer"}, nlohmann::json(42));
  fsdp::write_dcp_metadata(scratch, writer.finish());
  std::printf("%zu bytes of picture\n", fsdp::loss_curve_svg({"t", "", {1, 2}, {3, 4}, {}}).size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s TOKENS.h5 SCRATCH_DIRECTORY\n", argv[0]);
    return 2;
  }
  try {
    use_all(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
