#include "lib/training/evaluate/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {

void check_sampling(const SamplingOptions& options) {
  if (options.top_p <= 0 || options.top_p > 1)
    throw RequestError("top-p must be in (0, 1]", {Remedy::of_option, "top-p"});
  for (const auto& stop : options.stops) {
    if (stop.empty())
      throw RequestError("stop '': an empty text is everywhere; give some text", {Remedy::of_option, "stop"});
  }
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double random) {
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return element(logits, a) > element(logits, b); });
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < order.size()) order.resize(options.top_k);
  const double top = element(logits, order.front());
  std::vector<double> weights;
  double total = 0;
  for (const auto id : order) {
    weights.push_back(std::exp((element(logits, id) - top) / options.temperature));
    total += weights.back();
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double target = random * kept;
  for (std::size_t i = 0; i < count; ++i) {
    target -= weights[i];
    if (target < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace fsdp
