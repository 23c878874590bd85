#include "lib/training/requests/score_requests.hpp"
#include "lib/training/objectives/reference.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>

#include "lib/base/types/index.hpp"
#include "lib/compute/ops/rowwise_ops.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/training/evaluate/decode_step.hpp"
#include "lib/training/evaluate/evaluate.hpp"

namespace fsdp {
namespace {

/// Requests with one context. Of a single one the context goes on with the continuation's inputs.
struct RequestGroup {
  std::vector<std::size_t> requests;
  std::int64_t tokens = 0;  ///< that the model computes
};

/// Groups whose contexts begin alike, as questions after the same examples do: the beginning is computed once.
struct SharedBeginning {
  std::int64_t length = 0;          ///< ids, fewer than each context has; 0: the one group shares none
  std::vector<std::size_t> groups;  ///< indices
  std::int64_t tokens = 0;          ///< that the model computes
};

/// Computed tokens of a continuation: its last id is no input.
std::int64_t inputs_of(const ScoreRequest& request) { return std::ssize(request.continuation) - 1; }

std::vector<RequestGroup> groups_of(std::span<const ScoreRequest> requests, const ModelConfig& config) {
  std::vector<RequestGroup> groups;
  std::map<std::vector<std::int32_t>, std::size_t> by_context;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& request = requests[i];
    const auto length = std::ssize(request.context);
    // Where rotary frequencies depend on the length of the sequence the context's keys do, too.
    const bool shares = same_rope(config, length, length + inputs_of(request));
    const auto [known, is_new] =
        shares ? by_context.emplace(request.context, groups.size()) : std::pair{by_context.end(), true};
    if (is_new) groups.push_back({{}, length});
    auto& group = groups[is_new ? groups.size() - 1 : known->second];
    group.requests.push_back(i);
    group.tokens += inputs_of(request);
  }
  return groups;
}

/// Finds contexts that begin alike, by the requests alone: how they are divided over passes and ranks must not change
/// how a context is computed. In the order of the ids, a group joins those before it if that saves tokens.
std::vector<SharedBeginning> beginnings_of(std::span<const ScoreRequest> requests,
                                           const std::vector<RequestGroup>& groups, const ModelConfig& config) {
  constexpr std::int64_t kLeastShared = 32;  // below, a part of a pass costs more than its tokens
  const auto context_of = [&](std::size_t group) -> const std::vector<std::int32_t>& {
    return requests[groups[group].requests.front()].context;
  };
  const auto can_share = [&](std::size_t group) {
    return std::ranges::all_of(groups[group].requests, [&](std::size_t request) {
      return same_rope(config, 1, std::ssize(context_of(group)) + inputs_of(requests[request]));
    });
  };
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return context_of(a) < context_of(b); });
  std::vector<SharedBeginning> all;
  bool is_open = false;
  for (const auto group : order) {
    const auto& context = context_of(group);
    const auto longest = std::ssize(context) - 1;
    const bool can = can_share(group);
    if (is_open && can) {
      auto& last = all.back();
      const auto& before = context_of(last.groups.back());
      const auto alike = std::ranges::mismatch(before, context).in1 - before.begin();
      const auto length = std::min({last.length, alike, longest});
      const auto members = std::ssize(last.groups);
      if (length >= kLeastShared && members * length > (members - 1) * last.length) {
        last.length = length;
        last.groups.push_back(group);
        continue;
      }
    }
    all.push_back({longest, {group}});
    is_open = can;
  }
  for (auto& one : all) {
    if (one.groups.size() == 1) one.length = 0;
    one.tokens = one.length;
    for (const auto group : one.groups) one.tokens += groups[group].tokens - one.length;
  }
  return all;
}

/// Parts of a beginning's groups that have room in a pass, each with the beginning.
void cut(const SharedBeginning& whole, const std::vector<RequestGroup>& groups, std::int64_t most_tokens, int ranks,
         std::vector<SharedBeginning>& parts) {
  const auto own = whole.tokens - whole.length;
  const auto most = std::min(most_tokens, whole.length + (own + ranks - 1) / ranks);
  bool is_new = true;
  for (const auto group : whole.groups) {
    const auto tokens = groups[group].tokens - whole.length;
    if (is_new || parts.back().tokens + tokens > most) parts.push_back({whole.length, {}, whole.length});
    is_new = false;
    parts.back().groups.push_back(group);
    parts.back().tokens += tokens;
  }
}

using RankParts = std::vector<SharedBeginning>;

/// Parts by forward pass and rank: longest first, each on the rank that has least, as long as all have room.
std::vector<std::vector<RankParts>> passes_of(std::vector<SharedBeginning> parts, std::int64_t most_tokens, int ranks) {
  std::ranges::stable_sort(parts, std::greater(), &SharedBeginning::tokens);
  std::vector<std::vector<RankParts>> passes;
  std::vector<std::int64_t> tokens;
  for (auto& part : parts) {
    auto least = std::min_element(tokens.begin(), tokens.end());
    if (passes.empty() || (*least > 0 && *least + part.tokens > most_tokens)) {
      passes.emplace_back(static_cast<std::size_t>(ranks));
      tokens.assign(static_cast<std::size_t>(ranks), 0);
      least = tokens.begin();
    }
    *least += part.tokens;
    passes.back()[to_index(least - tokens.begin())].push_back(std::move(part));
  }
  return passes;
}

/// An id whose probability is wanted, and the row of activations before it.
struct WantedId {
  std::size_t request;
  std::int64_t row;
  std::int32_t id;
};

/// The segments of a rank's forward pass, and what is wanted of it.
class Pass {
 public:
  Pass(std::span<const ScoreRequest> requests, const std::vector<RequestGroup>& groups, const RankParts& parts)
      : requests_(requests) {
    for (const auto& part : parts) {
      std::span<LayerCache> beginning;
      if (part.length > 0) {
        beginning = new_cache();
        const auto& context = requests[groups[part.groups.front()].requests.front()].context;
        add({std::span(context).first(to_index(part.length)), 0, beginning});
      }
      for (const auto group : part.groups) add_group(groups[group].requests, beginning, part.length);
    }
  }

  const std::vector<DecodeSegment>& segments() const { return segments_; }
  const std::vector<WantedId>& wanted() const { return wanted_; }

 private:
  /// The keys and values of a context or a beginning, for each block in turn.
  std::span<LayerCache> new_cache() { return {&caches_.emplace_back(), 1}; }

  void add(const DecodeSegment& segment) {
    segments_.push_back(segment);
    rows_ += std::ssize(segment.ids);
  }

  /// Wants a continuation's ids from the `first` one on, which rows from `row` on precede.
  void want(std::size_t request, std::int64_t row, std::size_t first) {
    const auto& ids = requests_[request].continuation;
    for (auto i = first; i < ids.size(); ++i) wanted_.push_back({request, row++, ids[i]});
  }

  /// \param beginning  of the context's first `length` ids
  void add_group(const std::vector<std::size_t>& group, std::span<LayerCache> beginning, std::int64_t length) {
    const auto rest = std::span(requests_[group.front()].context).subspan(to_index(length));
    const bool is_branch = !beginning.empty();
    if (group.size() == 1) {
      const auto& ids = requests_[group.front()].continuation;
      auto& all = joined_.emplace_back(rest.begin(), rest.end());
      all.insert(all.end(), ids.begin(), ids.end() - 1);
      want(group.front(), rows_ + std::ssize(rest) - 1, 0);
      add({all, length, is_branch ? beginning : new_cache(), /*keeps=*/!is_branch});
      return;
    }
    const bool has_inputs = std::ranges::any_of(group, [&](auto request) { return inputs_of(requests_[request]) > 0; });
    const auto last = rows_ + std::ssize(rest) - 1;
    std::span<LayerCache> context;
    if (has_inputs || !is_branch) {
      context = new_cache();
      add({rest, length, context, /*keeps=*/true, beginning});
    } else {
      add({rest, length, beginning, /*keeps=*/false});
    }
    for (const auto request : group) {
      const auto& ids = requests_[request].continuation;
      wanted_.push_back({request, last, ids.front()});
      want(request, rows_, 1);
      if (ids.size() > 1)
        add({std::span(ids).first(ids.size() - 1), std::ssize(rest) + length, context, /*keeps=*/false});
    }
  }

  std::span<const ScoreRequest> requests_;
  std::deque<std::vector<std::int32_t>> joined_;  ///< ids of single requests
  std::deque<LayerCache> caches_;
  std::vector<DecodeSegment> segments_;
  std::vector<WantedId> wanted_;
  std::int64_t rows_ = 0;  ///< of the segments so far
};

/// Adds the log-probabilities of the wanted ids to the sums of their requests.
void add_scores(const ModelRuntime& runtime, LayerParams head, const at::Tensor& x_ND, const Pass& pass,
                std::int64_t least_rows, std::span<double> sums, std::span<double> misses) {
  const auto vocabulary = runtime.decoder().config.vocab_size;
  // Each row once, in pieces whose logits in float64 take some 64 MiB.
  std::vector<std::int64_t> rows;
  std::map<std::int64_t, std::int64_t> place_of;
  for (const auto& wanted : pass.wanted()) {
    if (place_of.emplace(wanted.row, std::ssize(rows)).second) rows.push_back(wanted.row);
  }
  const auto piece = std::max<std::int64_t>((std::int64_t{1} << 23) / vocabulary, RowwiseOps::kRowsAlike);
  for (std::int64_t first = 0; first < std::ssize(rows); first += piece) {
    const auto count = std::min(piece, std::ssize(rows) - first);
    auto places = at::tensor(at::ArrayRef<std::int64_t>(rows.data() + first, to_index(count)), at::kLong);
    auto x = x_ND.index_select(0, runtime.ops().to_device(places));
    if (count < least_rows) x = at::cat({x, x.new_zeros({least_rows - count, x.size(1)})});
    const auto logits =
        runtime.decoder().loss->logits(head, x).narrow(0, 0, count).narrow(1, 0, vocabulary).to(at::kDouble);
    std::vector<const WantedId*> here;
    std::vector<std::int64_t> at_rows, ids;
    for (const auto& wanted : pass.wanted()) {
      const auto place = place_of.at(wanted.row) - first;
      if (place < 0 || place >= count) continue;
      here.push_back(&wanted);
      at_rows.push_back(place);
      ids.push_back(wanted.id);
    }
    const auto on_device = [&](const std::vector<std::int64_t>& values) {
      return runtime.ops().to_device(at::tensor(at::ArrayRef<std::int64_t>(values), at::kLong));
    };
    const auto at_row = on_device(at_rows);
    const auto chosen = at::index(logits, {at_row, on_device(ids)});
    const auto scores = chosen - at::logsumexp(logits, 1).index_select(0, at_row);
    const auto best = at::argmax(logits, 1).index_select(0, at_row).to(at::kDouble);
    const auto both = runtime.ops().to_host(at::stack({scores, best}).contiguous());
    const auto* values = both.const_data_ptr<double>();
    for (std::size_t i = 0; i < here.size(); ++i) {
      sums[here[i]->request] += values[i];
      misses[here[i]->request] += values[here.size() + i] == static_cast<double>(ids[i]) ? 0 : 1;
    }
  }
}

}  // namespace

std::optional<std::vector<RequestScore>> score_requests(ModelRuntime& runtime, std::span<const ScoreRequest> requests,
                                                        const ScoreRequestsOptions& options) {
  const WithoutAutograd guard;
  const auto& ranks = runtime.data_ranks();
  const auto& config = runtime.decoder().config;
  const auto groups = groups_of(requests, config);
  std::int64_t longest = 0, all_tokens = 0, done = 0;
  for (const auto& request : requests) longest = std::max(longest, std::ssize(request.context) + inputs_of(request));
  const auto most_tokens = options.micro_batch_size * longest;
  std::vector<SharedBeginning> parts;
  for (const auto& beginning : beginnings_of(requests, groups, config))
    cut(beginning, groups, most_tokens, ranks.size, parts);
  for (const auto& part : parts) all_tokens += part.tokens;
  const auto least_rows = options.alike ? RowwiseOps::kRowsAlike : 0;
  std::vector<double> sums(requests.size()), misses(requests.size());
  for (const auto& by_rank : passes_of(std::move(parts), most_tokens, ranks.size)) {
    if (options.stopped && options.stopped()) return std::nullopt;
    const Pass pass(requests, groups, element(by_rank, ranks.rank));
    decode_segments(runtime, pass.segments(), least_rows, [&](LayerParams head, const at::Tensor& x_ND) {
      if (!pass.segments().empty()) add_scores(runtime, head, x_ND, pass, least_rows, sums, misses);
    });
    runtime.synchronize();
    for (const auto& of_rank : by_rank) {
      for (const auto& part : of_rank) done += part.tokens;
    }
    if (options.progress) options.progress(static_cast<double>(done) / static_cast<double>(all_tokens));
  }
  share_figures(runtime.world(), sums);
  share_figures(runtime.world(), misses);
  std::vector<RequestScore> scores(requests.size());
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = {sums[i], misses[i] == 0};
  return scores;
}

}  // namespace fsdp
