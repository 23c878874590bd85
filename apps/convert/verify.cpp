#include "apps/convert/verify.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "apps/convert/check_files.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/value_json.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

void add_plain(const std::string& name, const Json& value, std::map<std::string, Json>& plain) {
  if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) add_plain(name + "." + std::to_string(i), value[i], plain);
  } else if (value.is_object() && value.size() == 1 && value.contains("__tuple__")) {
    add_plain(name, value.at("__tuple__"), plain);
  } else if (value.is_object() && value.size() == 1 && value.contains("__dict__")) {
    for (const auto& item : value.at("__dict__")) {
      const auto& key = item.at(0);
      add_plain(name + "." + (key.is_string() ? key.get<std::string>() : json_text(key)), item.at(1), plain);
    }
  } else if (value.is_object() && value.contains("__object__") && value.contains("state")) {
    // An object such as an argparse.Namespace, which other formats hold as the dict of its attributes.
    add_plain(name, value.at("state"), plain);
  } else if (value.is_object() && (value.empty() || !value.begin().key().starts_with("__"))) {
    for (const auto& [key, item] : value.items()) add_plain(name + "." + key, item, plain);
  } else {
    plain[name] = value;
  }
}

/// All plain values of the source by path, elements joined by '.', so that a container that one format keeps whole and
/// another opens gives the same entries. Empty containers are left out, since some formats cannot hold them.
std::map<std::string, nlohmann::json> plain_values(const Source& source) {
  std::map<std::string, Json> plain;
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& name = source.values()[i].name;
    add_plain(name, Json::parse(value_to_json(*source.value(i).value, name)), plain);
  }
  return plain;
}

constexpr double kNone = std::numeric_limits<double>::infinity();

/// Two tensors of one name and shape, by number.
struct Pair {
  std::size_t a = 0, b = 0;
};

/// Findings by pair, as doubles that ranks can combine.
struct Findings {
  explicit Findings(std::size_t pairs) : different(pairs), first(pairs, kNone), max_abs(pairs), max_rel(pairs) {}
  std::mutex mutex;
  std::vector<double> different, first, max_abs, max_rel;
};

struct PieceDifference {
  std::uint64_t different = 0, first = 0;
  double max_abs = 0, max_rel = 0;
};

double distance(const ElementValue& a, const ElementValue& b) {
  const bool equal_real = a.real == b.real;  // the difference of infinities is NaN
  const bool equal_imaginary = a.imaginary == b.imaginary;
  return std::hypot(equal_real ? 0 : a.real - b.real, equal_imaginary ? 0 : a.imaginary - b.imaginary);
}

double magnitude(const ElementValue& value) { return std::hypot(value.real, value.imaginary); }
bool has_nan(const ElementValue& value) { return std::isnan(value.real) || std::isnan(value.imaginary); }

/// Compares the elements of one piece. Without a tolerance a NaN equals only a NaN with the same bits.
PieceDifference compare_piece(DType type_a, std::span<const std::byte> a, DType type_b, std::span<const std::byte> b,
                              double tolerance) {
  PieceDifference found;
  const bool exact = tolerance == 0;
  if (type_a == type_b && std::memcmp(a.data(), b.data(), a.size()) == 0) return found;
  const std::uint64_t width_a = dtype_size_bytes(type_a);
  const std::uint64_t width_b = dtype_size_bytes(type_b);
  for (std::uint64_t i = 0, n = a.size() / width_a; i < n; ++i) {
    if (type_a == type_b && std::memcmp(a.data() + i * width_a, b.data() + i * width_b, width_a) == 0) continue;
    const auto value_a = element_value(type_a, a, i);
    const auto value_b = element_value(type_b, b, i);
    const bool nan_a = has_nan(value_a);
    const bool nan_b = has_nan(value_b);
    const double apart = nan_a && nan_b ? 0 : distance(value_a, value_b);
    const double scale = std::max(magnitude(value_a), magnitude(value_b));
    if (!exact && std::isfinite(apart) && apart <= tolerance * std::max(1.0, scale)) continue;
    if (found.different++ == 0) found.first = i;
    // A single NaN, or an infinity and a number, are infinitely far apart.
    const double rel = apart == 0 ? 0 : apart / scale;
    found.max_abs = std::max(found.max_abs, std::isnan(apart) ? kNone : apart);
    found.max_rel = std::max(found.max_rel, std::isnan(rel) ? kNone : rel);
  }
  return found;
}

/// The buffers of one thread.
struct Thread {
  std::vector<std::byte> a, b;
  std::vector<ReadSum> sums_a, sums_b;
};

/// The elements of one side in a range: read at once when the range is a whole tensor and that is cheaper, else in
/// pieces.
class Side {
 public:
  Side(const Source& source, std::size_t tensor, const ElementRange& range, std::vector<std::byte>& kept,
       std::vector<ReadSum>& sums)
      : source_(source),
        tensor_(tensor),
        width_(dtype_size_bytes(source.tensors()[tensor].dtype)),
        range_(range),
        kept_(kept),
        sums_(sums) {
    if (!range.whole || !source.prefers_whole(tensor)) return;
    whole_.resize(range.count * width_);
    source.read(tensor, range.first, range.count, whole_, &sums);
  }
  DType dtype() const { return source_.tensors()[tensor_].dtype; }
  /// The result is valid until the next call.
  std::span<const std::byte> elements(std::uint64_t first, std::uint64_t count) {
    if (!whole_.empty()) return std::span(whole_).subspan((first - range_.first) * width_, count * width_);
    kept_.resize(count * width_);
    source_.read(tensor_, first, count, kept_, &sums_);
    return kept_;
  }

 private:
  const Source& source_;
  std::size_t tensor_;
  std::uint64_t width_;
  const ElementRange& range_;
  std::vector<std::byte>& kept_;
  std::vector<ReadSum>& sums_;
  std::vector<std::byte> whole_;
};

PieceDifference compare_range(const Source& source_a, const Source& source_b, const Pair& pair,
                              const ElementRange& range, const VerifyOptions& options, Thread& thread) {
  Side a(source_a, pair.a, range, thread.a, thread.sums_a);
  Side b(source_b, pair.b, range, thread.b, thread.sums_b);
  const auto step = std::max<std::uint64_t>(1, options.scan.piece_bytes / (range.bytes / range.count));
  PieceDifference all;
  for (std::uint64_t done = 0; done < range.count; done += step) {
    const auto count = std::min(step, range.count - done);
    const auto found = compare_piece(a.dtype(), a.elements(range.first + done, count), b.dtype(),
                                     b.elements(range.first + done, count), options.tolerance);
    if (found.different == 0) continue;
    if (all.different == 0) all.first = done + found.first;
    all.different += found.different;
    all.max_abs = std::max(all.max_abs, found.max_abs);
    all.max_rel = std::max(all.max_rel, found.max_rel);
  }
  return all;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::map<std::string, std::size_t> by_name(const Source& source) {
  std::map<std::string, std::size_t> numbers;
  for (std::size_t t = 0; t < source.tensors().size(); ++t) numbers.emplace(source.tensors()[t].name, t);
  return numbers;
}

/// Compares names, shapes and types; returns the pairs whose elements have to be compared.
std::vector<Pair> compare_headers(const Source& a, const Source& b, double tolerance, VerifyReport& report) {
  std::vector<Pair> pairs;
  auto rest = by_name(b);
  for (std::size_t t = 0; t < a.tensors().size(); ++t) {
    const auto& in_a = a.tensors()[t];
    const auto found = rest.find(in_a.name);
    if (found == rest.end()) {
      report.only_in_a.push_back(in_a.name);
      continue;
    }
    const auto number = found->second;
    const auto& in_b = b.tensors()[number];
    rest.erase(found);
    ++report.num_tensors;
    report.bytes += in_a.size_bytes();
    TensorDifference difference;
    difference.name = in_a.name;
    const auto has_tolerance = [](DType dtype) { return is_float(dtype) || is_complex(dtype); };
    const bool comparable = tolerance > 0 && has_tolerance(in_a.dtype) && has_tolerance(in_b.dtype);
    if (in_a.shape != in_b.shape) {
      difference.what = "shape";
      difference.a = shape_text(in_a.shape);
      difference.b = shape_text(in_b.shape);
      report.tensors.push_back(std::move(difference));
    } else if (in_a.dtype != in_b.dtype && !comparable) {
      difference.what = "dtype";
      difference.a = torch_name(in_a.dtype);
      difference.b = torch_name(in_b.dtype);
      report.tensors.push_back(std::move(difference));
    } else {
      pairs.push_back({t, number});
    }
  }
  for (const auto& [name, number] : rest) report.only_in_b.push_back(name);
  return pairs;
}

void compare_values(const Source& a, const Source& b, VerifyReport& report) {
  report.values_compared = !a.values().empty() == !b.values().empty();
  if (!report.values_compared) return;
  report.num_values = a.values().size();  // a container is one, as conversions and --inspect count
  const auto in_a = plain_values(a);
  auto in_b = plain_values(b);
  for (const auto& [name, value] : in_a) {
    const auto found = in_b.find(name);
    if (found == in_b.end()) {
      report.values.push_back({name, json_text(value), ""});
      continue;
    }
    if (value != found->second) report.values.push_back({name, json_text(value), json_text(found->second)});
    in_b.erase(found);
  }
  for (const auto& [name, value] : in_b) report.values.push_back({name, "", json_text(value)});
}

std::string element_text(const Source& source, std::size_t tensor, std::uint64_t index) {
  const auto dtype = source.tensors()[tensor].dtype;
  std::vector<std::byte> bytes(dtype_size_bytes(dtype));
  source.read(tensor, index, 1, bytes, nullptr);
  const auto value = element_value(dtype, bytes, 0);
  if (!is_complex(dtype)) return number_text(value.real);
  return number_text(value.real) + (std::signbit(value.imaginary) ? "" : "+") + number_text(value.imaginary) + "j";
}

TensorDifference describe(const Source& a, const Source& b, const Pair& pair, const Findings& findings, std::size_t p) {
  const auto first = static_cast<std::uint64_t>(findings.first[p]);
  const auto& tensor = a.tensors()[pair.a];
  return {.name = tensor.name,
          .what = "elements",
          .a = element_text(a, pair.a, first),
          .b = element_text(b, pair.b, first),
          .num_different = static_cast<std::uint64_t>(findings.different[p]),
          .num_elements = element_count(tensor.shape),
          .position = position_of(first, tensor.shape),
          .max_abs = findings.max_abs[p],
          .max_rel = findings.max_rel[p]};
}

/// A number for JSON, which has no infinity: that becomes text.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(number_text(value)); }

std::string sentence(const TensorDifference& difference) {
  if (difference.what != "elements") {
    return fmt::format("{}: {} {} in A, {} in B\n", difference.name, difference.what, difference.a, difference.b);
  }
  return fmt::format(
      "{}: {} of {} elements differ, the first at [{}]: {} in A, {} in B; largest difference {} (relative "
      "{})\n",
      difference.name, format_count(static_cast<std::int64_t>(difference.num_different)),
      format_count(static_cast<std::int64_t>(difference.num_elements)), fmt::join(difference.position, ", "),
      difference.a, difference.b, number_text(difference.max_abs), number_text(difference.max_rel));
}

std::string sentence(const ValueDifference& difference) {
  if (difference.b.empty()) return fmt::format("{}: value {} in A only\n", difference.name, difference.a);
  if (difference.a.empty()) return fmt::format("{}: value {} in B only\n", difference.name, difference.b);
  return fmt::format("{}: value {} in A, {} in B\n", difference.name, difference.a, difference.b);
}

}  // namespace

VerifyReport verify(const Source& a, const Source& b, ProcessGroup& group, const VerifyOptions& options) {
  VerifyReport report;
  const auto pairs = compare_headers(a, b, options.tolerance, report);
  std::vector<ElementRange> ranges;
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    const bool whole = a.prefers_whole(pairs[p].a) || b.prefers_whole(pairs[p].b);
    add_ranges(a.tensors()[pairs[p].a], p, whole, options.scan.piece_bytes, ranges);
  }

  Findings findings(pairs.size());
  std::vector<Thread> threads(scan_threads(options.scan));
  scan(ranges, group, options.scan, [&](const ElementRange& range, int number) {
    const auto found = compare_range(a, b, pairs[range.tensor], range, options, element(threads, number));
    if (found.different == 0) return;
    const std::lock_guard lock(findings.mutex);
    findings.different[range.tensor] += static_cast<double>(found.different);
    findings.first[range.tensor] =
        std::min(findings.first[range.tensor], static_cast<double>(range.first + found.first));
    findings.max_abs[range.tensor] = std::max(findings.max_abs[range.tensor], found.max_abs);
    findings.max_rel[range.tensor] = std::max(findings.max_rel[range.tensor], found.max_rel);
  });

  group.all_reduce(findings.different, Reduce::sum);
  group.all_reduce(findings.first, Reduce::min);
  group.all_reduce(findings.max_abs, Reduce::max);
  group.all_reduce(findings.max_rel, Reduce::max);
  std::vector<std::vector<ReadSum>> sums_a;
  std::vector<std::vector<ReadSum>> sums_b;
  for (auto& thread : threads) {
    sums_a.push_back(std::move(thread.sums_a));
    sums_b.push_back(std::move(thread.sums_b));
  }
  auto all_a = gather_sums(group, sums_a);
  auto all_b = gather_sums(group, sums_b);
  run_agreed(group, [&] {
    if (group.rank() != 0) return;
    a.verify_sums(std::move(all_a));
    b.verify_sums(std::move(all_b));
    compare_values(a, b, report);
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      if (findings.different[p] > 0) report.tensors.push_back(describe(a, b, pairs[p], findings, p));
    }
  });
  return report;
}

Json to_json(const VerifyReport& report) {
  Json tensors = Json::array();
  for (const auto& difference : report.tensors) {
    Json entry{{"name", difference.name}, {"what", difference.what}, {"a", difference.a}, {"b", difference.b}};
    if (difference.what == "elements") {
      entry["different"] = difference.num_different;
      entry["elements"] = difference.num_elements;
      entry["first"] = difference.position;
      entry["max_abs"] = number(difference.max_abs);
      entry["max_rel"] = number(difference.max_rel);
    }
    tensors.push_back(std::move(entry));
  }
  Json values = Json::array();
  for (const auto& difference : report.values) {
    values.push_back({{"name", difference.name}, {"a", difference.a}, {"b", difference.b}});
  }
  return {{"equal", report.equal()},
          {"tensors", report.num_tensors},
          {"bytes", report.bytes},
          {"values", report.num_values},
          {"values_compared", report.values_compared},
          {"only_in_a", report.only_in_a},
          {"only_in_b", report.only_in_b},
          {"different_tensors", std::move(tensors)},
          {"different_values", std::move(values)}};
}

std::string to_text(const VerifyReport& report) {
  constexpr std::size_t most = 10;
  std::string text;
  const auto list = [&](const auto& entries, const std::string& what, const auto& line) {
    for (std::size_t i = 0; i < entries.size() && i < most; ++i) text += line(entries[i]);
    if (entries.size() > most)
      text += fmt::format("... and {} more {} (--json has all)\n", entries.size() - most, what);
  };
  list(report.only_in_a, "tensors in A only", [](const std::string& name) { return name + ": in A only\n"; });
  list(report.only_in_b, "tensors in B only", [](const std::string& name) { return name + ": in B only\n"; });
  list(report.tensors, "tensors that differ", [](const TensorDifference& found) { return sentence(found); });
  list(report.values, "values that differ", [](const ValueDifference& found) { return sentence(found); });
  if (!report.values_compared) text += "(python values: only one of the two has any; not compared)\n";
  const auto compared =
      fmt::format("{} ({}) and {}", format_count_of(static_cast<std::int64_t>(report.num_tensors), "tensor"),
                  format_bytes(static_cast<double>(report.bytes)),
                  format_count_of(static_cast<std::int64_t>(report.num_values), "value"));
  if (report.equal()) return text + "equal: " + compared + "\n";
  return text + fmt::format("DIFFERENT: {} and {} differ or are missing; compared: {}\n",
                            format_count_of(static_cast<std::int64_t>(report.only_in_a.size() +
                                                                      report.only_in_b.size() + report.tensors.size()),
                                            "tensor"),
                            format_count_of(std::ssize(report.values), "value"), compared);
}

}  // namespace fsdp
