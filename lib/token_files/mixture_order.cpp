#include "lib/token_files/mixture_order.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kPointEvery = 16384;
constexpr std::size_t kMostPoints = 8;

}  // namespace

MixtureOrder::MixtureOrder(std::vector<MixtureSource> sources, const Options& options)
    : sources_(std::move(sources)), options_(options), first_{0, MixtureRule({1}), {}, {}}, now_(first_) {
  const auto gives = [](const MixtureSource& source) { return source.weight > 0; };
  if (std::ranges::none_of(sources_, gives)) throw RequestError("a mixture needs a source with a weight above 0");
  std::vector<std::int64_t> in_rule;
  for (auto& source : sources_) {
    samplers_.emplace_back(source.rows, options.seed, options.shuffle, source.place.rows);
    first_.samples.push_back(source.place.rows.samples);
    first_.in_mixture.push_back(source.place.in_mixture);
    in_rule.push_back(source.place.in_rule);
  }
  first_.position = options.first_position;
  bool all_have_ended = options.end == MixEnd::drop;
  for (std::size_t i = 0; i < sources_.size(); ++i) all_have_ended = all_have_ended && has_ended(i, first_.in_mixture);
  if (all_have_ended) std::ranges::fill(first_.in_mixture, 0);
  first_.rule = rule_of(first_.in_mixture);
  if (options.same_rule) first_.rule.resume(in_rule);
  now_ = first_;
  num_samples_ = count_samples();
  now_ = first_;
}

bool MixtureOrder::has_ended(std::size_t source, const std::vector<std::int64_t>& in_mixture) const {
  return sources_[source].weight == 0 || in_mixture[source] >= sources_[source].end;
}

/// The rule of the sources that have not ended; of all where all have.
MixtureRule MixtureOrder::rule_of(const std::vector<std::int64_t>& in_mixture) const {
  std::vector<std::int64_t> weights, going;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    weights.push_back(sources_[i].weight);
    going.push_back(has_ended(i, in_mixture) ? 0 : sources_[i].weight);
  }
  const bool any = std::ranges::any_of(going, [](std::int64_t weight) { return weight > 0; });
  return MixtureRule(options_.end == MixEnd::drop && any ? going : weights);
}

std::size_t MixtureOrder::advance() {
  const auto source = now_.rule.next();
  ++now_.position;
  ++now_.samples[source];
  ++now_.in_mixture[source];
  if (options_.end != MixEnd::drop || !has_ended(source, now_.in_mixture)) return source;
  bool all = true;
  for (std::size_t i = 0; i < sources_.size(); ++i) all = all && has_ended(i, now_.in_mixture);
  if (all) std::ranges::fill(now_.in_mixture, 0);
  now_.rule = rule_of(now_.in_mixture);
  return source;
}

std::int64_t MixtureOrder::count_samples() {
  if (options_.end != MixEnd::stop) {
    std::int64_t sum = 0;
    for (const auto& source : sources_) {
      if (source.weight > 0 && __builtin_add_overflow(sum, source.end, &sum))
        throw RequestError("the sources of a mixture have more samples than can be counted");
    }
    return sum;
  }
  // The rule's order begins again after as many samples as the weights sum to: whole rounds that no source can end in
  // need not be counted one by one.
  auto rounds = std::numeric_limits<std::int64_t>::max();
  std::int64_t round = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const auto weight = now_.rule.weights()[i];
    if (weight == 0) continue;
    round += weight;
    rounds = std::min(rounds, (sources_[i].end - now_.in_mixture[i]) / weight - 1);
  }
  if (rounds > 0) {
    now_.position += rounds * round;
    for (std::size_t i = 0; i < sources_.size(); ++i) now_.in_mixture[i] += rounds * now_.rule.weights()[i];
  }
  for (;; ++now_.position) {
    const auto next = now_.rule.next();
    if (has_ended(next, now_.in_mixture)) return now_.position;
    ++now_.in_mixture[next];
  }
}

void MixtureOrder::seek(std::int64_t position) {
  if (position < options_.first_position)
    throw std::out_of_range("stream position " + std::to_string(position) + " is before the first, " +
                            std::to_string(options_.first_position));
  if (position < now_.position) {
    while (!earlier_.empty() && earlier_.back().position > position) earlier_.pop_back();
    now_ = earlier_.empty() ? first_ : earlier_.back();
  }
  if (options_.end != MixEnd::drop && position - now_.position > kPointEvery && now_.position == first_.position) {
    auto rule = first_.rule;
    rule.seek(first_.rule.total() + position - first_.position);
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const auto more = rule.given()[i] - now_.rule.given()[i];
      now_.samples[i] += more;
      now_.in_mixture[i] += more;
    }
    now_.rule = std::move(rule);
    now_.position = position;
  }
  while (now_.position < position) {
    if (earlier_.empty() || now_.position - earlier_.back().position >= kPointEvery) {
      earlier_.push_back(now_);
      if (earlier_.size() > kMostPoints) earlier_.pop_front();
    }
    advance();
  }
}

MixtureSample MixtureOrder::at(std::int64_t position) {
  seek(position);
  const auto source = advance();
  return {source, samplers_[source].sample(now_.samples[source] - 1)};
}

std::vector<SourcePlace> MixtureOrder::places(std::int64_t position) {
  seek(position);
  std::vector<SourcePlace> places;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    places.push_back({samplers_[i].place(now_.samples[i]), now_.in_mixture[i], now_.rule.given()[i]});
  }
  return places;
}

}  // namespace fsdp
