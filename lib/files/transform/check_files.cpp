#include "lib/files/transform/check_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/text_format.hpp"
#include "lib/files/read/plain_value.hpp"
#include "lib/files/transform/check_numbers.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

/// What was found, by tensor; all threads of this rank add to it.
struct Findings {
  explicit Findings(std::size_t tensors) : nan(tensors), inf(tensors), first(tensors, kNone) {}
  std::mutex mutex;
  std::vector<double> nan, inf, first;
  std::map<std::size_t, std::string> damage;  ///< the first sentence of each damaged tensor
};

/// Exact: counts and indexes of tensors are far below 2^53.
void add(Findings& findings, const ElementRange& range, const NonFinite& found) {
  if (found.nan + found.inf == 0) return;
  const std::lock_guard lock(findings.mutex);
  findings.nan[range.tensor] += static_cast<double>(found.nan);
  findings.inf[range.tensor] += static_cast<double>(found.inf);
  findings.first[range.tensor] = std::min(findings.first[range.tensor], static_cast<double>(range.first + found.first));
}

/// A tensor's damage as found by any rank; the same tensor may be read by several.
std::vector<std::string> gather_damage(ProcessGroup& group, const Findings& findings) {
  const auto texts = group.gather(json_text(nlohmann::json(findings.damage)), 0);
  std::map<std::size_t, std::string> all;
  for (const auto& text : texts) all.merge(nlohmann::json::parse(text).get<std::map<std::size_t, std::string>>());
  std::vector<std::string> sentences;
  for (auto& [tensor, sentence] : all) sentences.push_back(std::move(sentence));
  return sentences;
}

void read_values(const Source& source, CheckReport& report) {
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    try {
      source.value(i);
    } catch (const ValueNotRead& refusal) {
      report.not_read.emplace_back(refusal.what());
    } catch (const FormatError& error) {
      report.damage.emplace_back(error.what());
    }
  }
}

CheckReport::NonFiniteTensor describe(const SourceTensor& tensor, const Findings& findings, std::size_t t) {
  return {tensor.name, static_cast<std::uint64_t>(num_elements(tensor.shape)),
          static_cast<std::uint64_t>(findings.nan[t]), static_cast<std::uint64_t>(findings.inf[t]),
          position_of(static_cast<std::uint64_t>(findings.first[t]), tensor.shape)};
}

}  // namespace

std::vector<std::int64_t> position_of(std::uint64_t index, const Shape& shape) {
  std::vector<std::int64_t> position(shape.size());
  for (auto d = shape.size(); d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(1, shape[d]));
    position[d] = static_cast<std::int64_t>(index % size);
    index /= size;
  }
  return position;
}

CheckReport check(const Source& source, ProcessGroup& group, const ScanOptions& options) {
  CheckReport report;
  report.num_tensors = source.tensors().size();
  report.num_values = source.values().size();
  std::vector<ElementRange> ranges;
  for (std::size_t t = 0; t < source.tensors().size(); ++t) {
    add_ranges(source.tensors()[t], t, source.prefers_whole(t), options.piece_bytes, ranges);
    report.bytes += source.tensors()[t].size_bytes();
  }

  Findings findings(source.tensors().size());
  const auto threads = static_cast<std::size_t>(scan_threads(options));
  std::vector<std::vector<std::byte>> buffers(threads);
  std::vector<std::vector<ReadSum>> sums(threads);
  scan(ranges, group, options, [&](const ElementRange& range, int thread) {
    std::vector<std::byte> passing;
    const auto buffer = buffer_for(range, range.bytes, buffers[static_cast<std::size_t>(thread)], passing);
    try {
      source.read(range.tensor, range.first, range.count, buffer, &sums[static_cast<std::size_t>(thread)]);
    } catch (const FormatError& error) {
      const std::lock_guard lock(findings.mutex);
      findings.damage.emplace(range.tensor, error.what());
      return;
    }
    add(findings, range, count_non_finite(source.tensors()[range.tensor].dtype, buffer));
  });

  group.all_reduce(findings.nan, Reduce::sum);
  group.all_reduce(findings.inf, Reduce::sum);
  group.all_reduce(findings.first, Reduce::min);
  report.damage = gather_damage(group, findings);
  auto all_sums = gather_sums(group, sums);
  run_agreed(group, [&] {
    if (group.rank() != 0) return;
    try {
      source.verify_sums(std::move(all_sums));
    } catch (const FormatError& error) {
      report.damage.emplace_back(error.what());
    }
    read_values(source, report);
    for (std::size_t t = 0; t < source.tensors().size(); ++t) {
      if (findings.first[t] != kNone) report.non_finite.push_back(describe(source.tensors()[t], findings, t));
    }
  });
  return report;
}

nlohmann::json to_json(const CheckReport& report) {
  nlohmann::json non_finite = nlohmann::json::array();
  for (const auto& tensor : report.non_finite) {
    non_finite.push_back({{"name", tensor.name},
                          {"elements", tensor.elements},
                          {"nan", tensor.nan},
                          {"inf", tensor.inf},
                          {"first", tensor.first}});
  }
  return {{"ok", report.damage.empty() && report.non_finite.empty()},
          {"tensors", report.num_tensors},
          {"values", report.num_values},
          {"bytes", report.bytes},
          {"damage", report.damage},
          {"not_read", report.not_read},
          {"non_finite", std::move(non_finite)}};
}

std::string to_text(const CheckReport& report) {
  std::string text;
  for (const auto& sentence : report.damage) text += "damaged: " + sentence + "\n";
  for (const auto& sentence : report.not_read) text += "not read: " + sentence + "\n";
  for (const auto& tensor : report.non_finite) {
    text += fmt::format("{}: {} NaN and {} infinite of {} elements, the first at [{}]\n", tensor.name, tensor.nan,
                        tensor.inf, format_count(static_cast<std::int64_t>(tensor.elements)),
                        fmt::join(tensor.first, ", "));
  }
  const auto read = fmt::format("{} and {}, {} of tensor data",
                                format_count_of(static_cast<std::int64_t>(report.num_tensors), "tensor"),
                                format_count_of(static_cast<std::int64_t>(report.num_values), "value"),
                                format_bytes(static_cast<double>(report.bytes)));
  if (!report.damage.empty()) return text + fmt::format("DAMAGED: {} of {}\n", report.damage.size(), read);
  if (!report.non_finite.empty()) {
    return text + fmt::format("readable, but {} of the tensors have NaN or infinite elements: {}\n",
                              report.non_finite.size(), read);
  }
  return text + fmt::format("good: {}, no NaN, no infinite element\n", read);
}

}  // namespace fsdp
