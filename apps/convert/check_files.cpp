#include "apps/convert/check_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <type_traits>
#include <utility>

#include "apps/common/remedies.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/transform/cast.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

template <typename T>
T load(std::span<const std::byte> bytes, std::uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

/// Counts in numbers of `parts` parts each, by their bits.
template <typename Bits, std::uint64_t parts>
NonFinite count(std::span<const std::byte> bytes, const FloatFormat& format) {
  const auto all_ones = static_cast<Bits>(format.all_ones()), mantissa = static_cast<Bits>(format.mantissa_mask());
  const auto special = format.has_infinity ? static_cast<Bits>(format.infinity()) : all_ones;
  NonFinite found;
  for (std::uint64_t i = 0, n = bytes.size() / sizeof(Bits) / parts; i < n; ++i) {
    bool nan = false;
    bool inf = false;
    for (std::uint64_t part = 0; part < parts; ++part) {
      const auto bits = load<Bits>(bytes, i * parts + part);
      if ((bits & special) != special) continue;
      ((bits & mantissa) != 0 ? nan : inf) = true;
    }
    if (!nan && !inf) continue;
    if (found.nan + found.inf == 0) found.first = i;
    ++(nan ? found.nan : found.inf);
  }
  return found;
}

/// Calls visit() with a number of the type in which C++ has integers of `size_bytes`.
template <typename Visit>
auto with_integer(std::size_t size_bytes, bool is_signed, Visit visit) {
  switch (size_bytes) {
    case 1:
      return is_signed ? visit(std::int8_t()) : visit(std::uint8_t());
    case 2:
      return is_signed ? visit(std::int16_t()) : visit(std::uint16_t());
    case 4:
      return is_signed ? visit(std::int32_t()) : visit(std::uint32_t());
    case 8:
      return is_signed ? visit(std::int64_t()) : visit(std::uint64_t());
    default:
      throw std::logic_error("no integer has this size");
  }
}

/// The ranges of this rank: contiguous ones, so that each rank reads its files in order.
std::span<const ElementRange> share_of(std::span<const ElementRange> ranges, int rank, int size) {
  std::uint64_t total = 0;
  for (const auto& range : ranges) total += range.bytes;
  const auto boundary = [&](int r) {
    std::uint64_t before = 0;
    std::size_t i = 0;
    const auto wanted = static_cast<std::uint64_t>(static_cast<double>(total) * r / size);
    while (i < ranges.size() && before < wanted) before += ranges[i++].bytes;
    return r == size ? ranges.size() : i;
  };
  const auto begin = rank == 0 ? 0 : boundary(rank);
  return ranges.subspan(begin, boundary(rank + 1) - begin);
}

/// State that the threads of a scan share.
struct Scan {
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<bool> ended{false};  ///< set on an error, or when `stop` returned true
  std::mutex whole;                ///< held while a whole tensor is in memory
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  std::exception_ptr error;
};

void work(Scan& scan, std::span<const ElementRange> share, int thread,
          const std::function<void(const ElementRange&, int)>& visit) {
  try {
    for (auto i = scan.next++; i < share.size() && !scan.ended; i = scan.next++) {
      std::unique_lock one_at_a_time(scan.whole, std::defer_lock);
      if (share[i].whole) one_at_a_time.lock();
      visit(share[i], thread);
      scan.bytes_done += share[i].bytes;
    }
  } catch (...) {
    const std::lock_guard lock(scan.mutex);
    if (!scan.error) scan.error = std::current_exception();
    scan.ended = true;
  }
  const std::lock_guard lock(scan.mutex);
  --scan.running;
  scan.changed.notify_all();
}

constexpr double kNone = std::numeric_limits<double>::infinity();

/// Findings by tensor, to which all threads of this rank add.
struct Findings {
  explicit Findings(std::size_t tensors) : nan(tensors), inf(tensors), first(tensors, kNone) {}
  std::mutex mutex;
  std::vector<double> nan, inf, first;
  std::map<std::size_t, std::string> damage;  ///< the first sentence of each damaged tensor
};

/// The doubles are exact: counts and indexes of tensors are far below 2^53.
void add(Findings& findings, const ElementRange& range, const NonFinite& found) {
  if (found.nan + found.inf == 0) return;
  const std::lock_guard lock(findings.mutex);
  findings.nan[range.tensor] += static_cast<double>(found.nan);
  findings.inf[range.tensor] += static_cast<double>(found.inf);
  findings.first[range.tensor] = std::min(findings.first[range.tensor], static_cast<double>(range.first + found.first));
}

/// Gathers the damage of each tensor from all ranks; several ranks may read one tensor.
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
      report.not_read.emplace_back(told(refusal));
    } catch (const FormatError& error) {
      report.damage.emplace_back(told(error));
    }
  }
}

CheckReport::NonFiniteTensor describe(const SourceTensor& tensor, const Findings& findings, std::size_t t) {
  return {.name = tensor.name,
          .elements = element_count(tensor.shape),
          .nan = static_cast<std::uint64_t>(findings.nan[t]),
          .inf = static_cast<std::uint64_t>(findings.inf[t]),
          .first = position_of(static_cast<std::uint64_t>(findings.first[t]), tensor.shape)};
}

}  // namespace

NonFinite count_non_finite(DType dtype, std::span<const std::byte> elements) {
  const auto size = dtype_size_bytes(dtype);
  const auto& format = dtype_row(dtype).format;
  if (format.exponent_bits == 0) return {};
  const bool two_parts = is_complex(dtype);
  return with_integer(two_parts ? size / 2 : size, false, [&](auto integer) {
    using Bits = std::make_unsigned_t<decltype(integer)>;
    return two_parts ? count<Bits, 2>(elements, format) : count<Bits, 1>(elements, format);
  });
}

ElementValue element_value(DType dtype, std::span<const std::byte> elements, std::uint64_t index) {
  const auto& row = dtype_row(dtype);
  const auto element = elements.subspan(index * row.size_bytes, row.size_bytes);
  if (row.kind == NumberKind::real) return {float_to_double(row.format, element), 0};
  if (row.kind == NumberKind::complex) {
    const auto half = row.size_bytes / 2;
    return {float_to_double(row.format, element.first(half)), float_to_double(row.format, element.last(half))};
  }
  return with_integer(row.size_bytes, row.kind == NumberKind::signed_integer, [&](auto integer) {
    return ElementValue{static_cast<double>(load<decltype(integer)>(element, 0)), 0};
  });
}

std::string number_text(double value) { return fmt::format("{}", value); }

int scan_threads(const ScanOptions& options) { return options.jobs > 0 ? options.jobs : std::min(4, usable_cores()); }

std::span<std::byte> buffer_for(const ElementRange& range, std::uint64_t size, std::vector<std::byte>& kept,
                                std::vector<std::byte>& passing) {
  auto& buffer = range.whole ? passing : kept;
  buffer.resize(size);
  return buffer;
}

void add_ranges(const SourceTensor& described, std::size_t tensor, bool whole, std::uint64_t piece_bytes,
                std::vector<ElementRange>& ranges) {
  const std::uint64_t width = dtype_size_bytes(described.dtype);
  const std::uint64_t elements = described.size_bytes() / width;
  const std::uint64_t step = whole ? elements : std::max<std::uint64_t>(1, piece_bytes / width);
  for (std::uint64_t first = 0; first < elements; first += step) {
    const auto count = std::min(step, elements - first);
    ranges.push_back({.tensor = tensor, .first = first, .count = count, .bytes = count * width, .whole = whole});
  }
}

void scan(std::span<const ElementRange> ranges, ProcessGroup& group, const ScanOptions& options,
          const std::function<void(const ElementRange&, int)>& visit) {
  const auto share = share_of(ranges, group.rank(), group.size());
  std::uint64_t total = 0;
  for (const auto& range : ranges) total += range.bytes;
  std::uint64_t own_total = 0;
  for (const auto& range : share) own_total += range.bytes;

  Scan state;
  state.running = scan_threads(options);
  const int num_threads = state.running;
  const auto report = [&] {
    if (!options.progress || group.rank() != 0 || own_total == 0) return;
    // Assume that the other ranks have made the same progress.
    const double part = static_cast<double>(state.bytes_done) / static_cast<double>(own_total);
    options.progress(static_cast<std::uint64_t>(part * static_cast<double>(total)), total);
  };
  {
    std::vector<std::jthread> threads;
    try {
      start_thread("reads the tensors", [&] {
        for (int t = 0; t < num_threads; ++t) threads.emplace_back([&, t] { work(state, share, t, visit); });
      });
    } catch (...) {
      state.ended = true;  // the other threads' work, too
      throw;
    }
    std::unique_lock lock(state.mutex);
    while (state.running > 0) {
      state.changed.wait_for(lock, std::chrono::milliseconds(50));
      if (options.stop && options.stop() && !state.ended) {
        state.ended = true;
        if (!state.error) state.error = std::make_exception_ptr(Error(ExitCode::failed, "stopped before the end"));
      }
      report();
    }
  }
  if (!state.error) report();
  run_agreed(group, [&] {
    if (state.error) std::rethrow_exception(state.error);
  });
}

std::vector<ReadSum> gather_sums(ProcessGroup& group, const std::vector<std::vector<ReadSum>>& by_thread) {
  std::vector<ReadSum> own;
  for (const auto& sums : by_thread) own.insert(own.end(), sums.begin(), sums.end());
  return gather_sums(group, own);
}

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
    const auto buffer = buffer_for(range, range.bytes, element(buffers, thread), passing);
    try {
      source.read(range.tensor, range.first, range.count, buffer, &element(sums, thread));
    } catch (const FormatError& error) {
      const std::lock_guard lock(findings.mutex);
      findings.damage.emplace(range.tensor, told(error));
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
      report.damage.emplace_back(told(error));
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
