// Converts a checkpoint using only lib/checkpoints, for target_torch_test.py:
// write_target torch|safetensors|hf|dcp IN OUT [NUMBER], where NUMBER is dcp's ranks or hf's largest file in bytes.
#include <cstdio>
#include <memory>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/dcp_target.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/target/copy.hpp"

namespace {

using namespace fsdp;

std::unique_ptr<Target> make_target(const std::string& format, const Source& source, const std::string& output,
                                    const char* number) {
  if (format == "torch") return std::make_unique<TorchTarget>(output);
  if (format == "safetensors") return std::make_unique<SafetensorsTarget>(output);
  if (format == "hf") {
    HfTargetOptions options;
    options.carry_from.push_back(source.info().directory);
    if (number != nullptr) options.max_shard_bytes = std::stoull(number);
    return std::make_unique<HfTarget>(options);
  }
  if (format != "dcp") throw UsageError("no format \"" + format + "\"");
  DcpTargetOptions options;
  if (number != nullptr) options.num_shards = std::stoi(number);
  carry_run_json(options, source.info().directory);
  return std::make_unique<DcpTarget>(std::move(options));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "usage: %s torch|safetensors|hf|dcp IN OUT [NUMBER]\n", argv[0]);
    return 2;
  }
  const auto source = open_source(argv[2]);
  const auto target = make_target(argv[1], *source, argv[3], argc == 5 ? argv[4] : nullptr);
  const auto group = make_single_group();
  const auto report = copy(*source, *target, argv[3], {}, *group);
  std::printf("%llu bytes in %zu files\n", static_cast<unsigned long long>(report.bytes_written), report.num_files);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
