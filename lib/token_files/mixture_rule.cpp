#include "lib/token_files/mixture_rule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

__extension__ using Wide = __int128;  // of GCC and Clang

constexpr std::int64_t kMostSum = std::int64_t{1} << 50;
constexpr double kBillion = 1e9;

/// A decimal number: digits * 10^exponent.
struct Decimal {
  std::int64_t digits = 0;
  int exponent = 0;
};

/// The shortest decimal number that is read as `value`, as a user wrote it.
Decimal shortest_decimal(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);
  std::string digits;
  Decimal number;
  const auto mark = text.find('e');
  for (std::size_t i = 0; i < mark; ++i) {
    if (text[i] == '.') {
      number.exponent -= static_cast<int>(mark - i - 1);
    } else {
      digits += text[i];
    }
  }
  number.digits = std::stoll(digits);
  number.exponent += std::stoi(text.substr(mark + 1));
  while (number.digits != 0 && number.digits % 10 == 0) {
    number.digits /= 10;
    ++number.exponent;
  }
  return number;
}

/// The weights over a common power of ten; empty when they do not fit.
std::vector<std::int64_t> exact_weights(std::span<const double> weights) {
  std::vector<Decimal> decimals;
  int exponent = 0;
  for (const auto weight : weights) {
    decimals.push_back(weight == 0 ? Decimal() : shortest_decimal(weight));
    if (weight != 0) exponent = std::min(exponent, decimals.back().exponent);
  }
  std::vector<std::int64_t> whole;
  Wide sum = 0;
  for (const auto& [digits, own] : decimals) {
    Wide value = digits;
    for (int i = exponent; i < own && value <= kMostSum; ++i) value *= 10;
    sum += value;
    if (sum > kMostSum) return {};
    whole.push_back(static_cast<std::int64_t>(value));
  }
  return whole;
}

}  // namespace

std::vector<std::int64_t> whole_weights(std::span<const double> weights) {
  double sum = 0;
  for (const auto weight : weights) {
    if (!std::isfinite(weight) || weight < 0)
      throw RequestError(fmt::format("a weight of a mixture is {}: give a number that is not negative", weight));
    sum += weight;
  }
  if (!(sum > 0) || !std::isfinite(sum))
    throw RequestError("the weights of a mixture sum to " + fmt::format("{}", sum) + ": give at least one above 0");
  auto whole = exact_weights(weights);
  if (whole.empty()) {
    for (const auto weight : weights) {
      whole.push_back(static_cast<std::int64_t>(std::llround(weight / sum * kBillion)));
      if (weight > 0 && whole.back() == 0)
        throw RequestError(
            fmt::format("the weight {} is less than a billionth of the sum {} of a mixture: leave that source out, or "
                        "give another weight",
                        weight, sum));
    }
  }
  return lowest_terms(std::move(whole));
}

std::vector<std::int64_t> lowest_terms(std::vector<std::int64_t> weights) {
  std::int64_t divisor = 0;
  for (const auto weight : weights) divisor = std::gcd(divisor, weight);
  for (auto& weight : weights) weight /= std::max<std::int64_t>(1, divisor);
  return weights;
}

MixtureRule::MixtureRule(std::vector<std::int64_t> weights)
    : weights_(std::move(weights)), given_(weights_.size(), 0), due_(weights_.size(), 0) {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] < 0) throw std::invalid_argument("MixtureRule: a negative weight");
    if (weights_[i] > 0) positive_.push_back(i);
    sum_ += weights_[i];
  }
  if (sum_ < 1 || sum_ > kMostSum)
    throw std::invalid_argument("MixtureRule: weights that sum to " + std::to_string(sum_));
  // Twice the sum bounds |due|, and 8 k sum^2 a product of room and weight.
  is_small_ = static_cast<Wide>(sum_) * sum_ * 8 * std::ssize(positive_) < (Wide{1} << 62);
}

std::size_t MixtureRule::next() { return is_small_ ? choose<std::int64_t>() : choose<Wide>(); }

template <class Number>
std::size_t MixtureRule::choose() {
  const auto spread = static_cast<Number>(2 * std::ssize(positive_) - 2);
  const auto sum = static_cast<Number>(sum_);
  std::size_t chosen = positive_.front();
  Number best = 0;
  bool found = false;
  for (const auto i : positive_) {
    due_[i] += weights_[i];
    // A source that is nearly a sample ahead waits; of the others the one that would be first a sample late is next.
    const auto late = static_cast<Number>(due_[i]) * spread;
    if (late < sum && spread > 0) continue;
    const auto room = sum * (spread - 1) - late;
    if (found && room * weights_[chosen] >= best * weights_[i]) continue;
    found = true;
    chosen = i;
    best = room;
  }
  due_[chosen] -= sum_;
  ++given_[chosen];
  ++total_;
  return chosen;
}

void MixtureRule::resume(const std::vector<std::int64_t>& given) {
  if (given.size() != weights_.size()) throw std::invalid_argument("MixtureRule: another number of sources");
  const auto total = std::reduce(given.begin(), given.end(), std::int64_t{0});
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto due = static_cast<Wide>(weights_[i]) * total - static_cast<Wide>(given[i]) * sum_;
    if (given[i] < 0 || due >= sum_ || due <= -static_cast<Wide>(sum_))
      throw std::invalid_argument("MixtureRule: source " + std::to_string(i) + " has not given " +
                                  std::to_string(given[i]) + " of " + std::to_string(total) + " samples");
    due_[i] = static_cast<std::int64_t>(due);
  }
  given_ = given;
  total_ = total;
}

void MixtureRule::seek(std::int64_t samples) {
  // After as many samples as the weights sum to, each source has given its weight, and the order begins again.
  std::vector<std::int64_t> given;
  for (const auto weight : weights_) given.push_back(samples / sum_ * weight);
  resume(given);
  while (total_ < samples) next();
}

}  // namespace fsdp
