#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/text_format.hpp"
#include "lib/files/transform/check_numbers.hpp"
#include "lib/files/transform/verify.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

/// JSON has no infinity: it becomes text.
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
  std::string text;
  for (const auto& name : report.only_in_a) text += name + ": in A only\n";
  for (const auto& name : report.only_in_b) text += name + ": in B only\n";
  for (const auto& difference : report.tensors) text += sentence(difference);
  for (const auto& difference : report.values) text += sentence(difference);
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
                            format_count_of(static_cast<std::int64_t>(report.values.size()), "value"), compared);
}

}  // namespace fsdp
