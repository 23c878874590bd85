#pragma once
// Which of several sources gives the next sample of a mixture.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// Weights as whole numbers of the same proportions: 0.7 and 0.3 become 7 and 3. Decimal numbers are taken exactly
/// where that fits; weights of very many digits are rounded to billionths of their sum. \param weights  finite, not
/// negative, not all 0 \throws RequestError when one is not, or is so small beside the others that it would become 0
std::vector<std::int64_t> whole_weights(std::span<const double> weights);

/// Weights of the same proportions without a common divisor: 70 and 30 become 7 and 3.
std::vector<std::int64_t> lowest_terms(std::vector<std::int64_t> weights);

/// Tijdeman's rule for the chairman assignment problem (Discrete Mathematics 32, 1980, 323-330): for k sources of which
/// each has a weight w > 0, the weights summing to 1, after every sample t each source has given w t samples, less than
/// 1 - 1 / (2k - 2) more or fewer. The choice is a function of the weights and of what the sources have given, in whole
/// numbers, so that it is the same on every rank and platform. Frozen: a saved run continues in the order it began
/// with.
class MixtureRule {
 public:
  /// \param weights  of each source, not negative, at least one positive; their sum is at most 2^50
  explicit MixtureRule(std::vector<std::int64_t> weights);

  /// Chooses a source for the next sample, of equal ones the first.
  std::size_t next();
  /// Samples of each source so far.
  const std::vector<std::int64_t>& given() const { return given_; }
  std::int64_t total() const { return total_; }
  const std::vector<std::int64_t>& weights() const { return weights_; }

  /// Goes on after as many samples of each source.
  /// \param given  what next() comes to; std::invalid_argument when no number of calls does
  void resume(const std::vector<std::int64_t>& given);
  /// Goes to the place after `samples` samples. Takes no longer than as many samples as the weights sum to.
  void seek(std::int64_t samples);

 private:
  template <class Number>
  std::size_t choose();

  std::vector<std::int64_t> weights_, given_;
  std::vector<std::int64_t> due_;      ///< weight * total - given * sum, for each source
  std::vector<std::size_t> positive_;  ///< sources with a weight
  std::int64_t sum_ = 0, total_ = 0;
  bool is_small_ = false;  ///< products fit into 64 bits
};

}  // namespace fsdp
