#include "lib/files/transform/output_kind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::array kKinds{OutputKind::torch, OutputKind::safetensors, OutputKind::hf, OutputKind::dcp};

OutputKind kind_of_name(const std::string& name) {
  for (const auto kind : kKinds) {
    if (name == to_string(kind)) return kind;
  }
  throw UsageError("--to " + name + ": must be torch, safetensors, hf or dcp");
}

std::optional<OutputKind> kind_of_suffix(const std::filesystem::path& output) {
  const auto suffix = output.extension();
  if (suffix == ".pt" || suffix == ".pth" || suffix == ".bin") return OutputKind::torch;
  if (suffix == ".safetensors") return OutputKind::safetensors;
  return std::nullopt;
}

OutputKind kind_of_request(const OutputRequest& request) {
  if (!request.to.empty()) return kind_of_name(request.to);
  if (const auto kind = kind_of_suffix(request.output)) return *kind;
  if (request.shards_given && !request.max_shard_size_given) return OutputKind::dcp;
  if (request.max_shard_size_given && !request.shards_given) return OutputKind::hf;
  throw UsageError(
      fmt::format("{}: its name does not say which format to write: give --to torch, safetensors, hf or dcp (or end it "
                  "in .pt, .pth, .bin or .safetensors; --shards alone means dcp, --max-shard-size alone hf)",
                  request.output.string()));
}

}  // namespace

std::string_view to_string(OutputKind kind) {
  switch (kind) {
    case OutputKind::torch:
      return "torch";
    case OutputKind::safetensors:
      return "safetensors";
    case OutputKind::hf:
      return "hf";
    case OutputKind::dcp:
      return "dcp";
  }
  return "?";
}

OutputKind choose_output_kind(const OutputRequest& request) {
  const auto kind = kind_of_request(request);
  if (request.shards_given && kind != OutputKind::dcp) {
    throw UsageError(
        fmt::format("--shards goes with --to dcp only; {} is written as {}", request.output.string(), to_string(kind)));
  }
  if (request.max_shard_size_given && kind != OutputKind::hf) {
    throw UsageError(fmt::format("--max-shard-size goes with --to hf only; {} is written as {}",
                                 request.output.string(), to_string(kind)));
  }
  return kind;
}

std::uint64_t parse_size(std::string_view text, std::string_view option) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array<std::pair<std::string_view, double>, 12> units{{{"", 1},
                                                                       {"b", 1},
                                                                       {"kb", 1e3},
                                                                       {"mb", 1e6},
                                                                       {"gb", 1e9},
                                                                       {"tb", 1e12},
                                                                       {"kib", 0x1p10},
                                                                       {"mib", 0x1p20},
                                                                       {"gib", 0x1p30},
                                                                       {"tib", 0x1p40},
                                                                       {"m", 1e6},
                                                                       {"g", 1e9}}};
  const auto* found = std::find_if(units.begin(), units.end(), [&](const auto& known) { return known.first == unit; });
  const double bytes = found == units.end() ? 0 : std::floor(number * found->second);
  if (error != std::errc() || found == units.end() || !(bytes >= 1 && bytes < 0x1p62)) {
    throw UsageError(fmt::format("{} {}: must be a size such as 5GB, 500MB or 2GiB", option, text));
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace fsdp
