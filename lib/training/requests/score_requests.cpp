#include "lib/training/requests/score_requests.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
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

/// Groups by forward pass and rank: longest first, each on the rank that has least, as long as all have room.
std::vector<std::vector<std::vector<std::size_t>>> passes_of(const std::vector<RequestGroup>& groups,
                                                             std::int64_t most_tokens, int ranks) {
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return groups[a].tokens > groups[b].tokens; });
  std::vector<std::vector<std::vector<std::size_t>>> passes;
  std::vector<std::int64_t> tokens;
  for (const auto group : order) {
    auto least = std::min_element(tokens.begin(), tokens.end());
    if (passes.empty() || (*least > 0 && *least + groups[group].tokens > most_tokens)) {
      passes.emplace_back(static_cast<std::size_t>(ranks));
      tokens.assign(static_cast<std::size_t>(ranks), 0);
      least = tokens.begin();
    }
    *least += groups[group].tokens;
    passes.back()[to_index(least - tokens.begin())].push_back(group);
  }
  return passes;
}

/// An id whose probability is wanted, and the row of activations before it.
struct WantedId {
  std::size_t request;
  std::int64_t row;
  std::int32_t id;
};

/// The segments of a forward pass, and what is wanted of it.
struct Pass {
  std::vector<std::vector<std::int32_t>> joined;  ///< ids of single requests
  std::vector<LayerCache> caches;                 ///< of contexts, for each block in turn
  std::vector<DecodeSegment> segments;
  std::vector<WantedId> wanted;
};

Pass pass_of(std::span<const ScoreRequest> requests, const std::vector<RequestGroup>& groups,
             const std::vector<std::size_t>& of_rank) {
  Pass pass;
  pass.joined.reserve(of_rank.size());
  pass.caches.resize(of_rank.size());
  std::int64_t row = 0;
  for (std::size_t g = 0; g < of_rank.size(); ++g) {
    const auto& group = groups[of_rank[g]];
    const auto caches = std::span(pass.caches).subspan(g, 1);
    const auto& context = requests[group.requests.front()].context;
    const auto want = [&](std::size_t request, std::int64_t first_row, std::size_t first_id) {
      const auto& ids = requests[request].continuation;
      for (auto i = first_id; i < ids.size(); ++i) pass.wanted.push_back({request, first_row++, ids[i]});
    };
    const auto length = std::ssize(context);
    if (group.requests.size() == 1) {
      const auto& ids = requests[group.requests.front()].continuation;
      auto& all = pass.joined.emplace_back(context);
      all.insert(all.end(), ids.begin(), ids.end() - 1);
      pass.segments.push_back({all, 0, caches});
      want(group.requests.front(), row + length - 1, 0);
      row += std::ssize(all);
      continue;
    }
    pass.segments.push_back({context, 0, caches});
    const auto last = row + length - 1;
    row += length;
    for (const auto request : group.requests) {
      const auto inputs = inputs_of(requests[request]);
      pass.wanted.push_back({request, last, requests[request].continuation.front()});
      want(request, row, 1);
      if (inputs == 0) continue;
      pass.segments.push_back(
          {std::span(requests[request].continuation).first(to_index(inputs)), length, caches, /*keeps=*/false});
      row += inputs;
    }
  }
  return pass;
}

/// Adds the log-probabilities of the wanted ids to the sums of their requests.
void add_scores(const ModelRuntime& runtime, LayerParams head, const at::Tensor& x_ND, const Pass& pass,
                std::int64_t least_rows, std::span<double> sums, std::span<double> misses) {
  const auto vocabulary = runtime.decoder().config.vocab_size;
  // Each row once, in pieces whose logits in float64 take some 64 MiB.
  std::vector<std::int64_t> rows;
  std::map<std::int64_t, std::int64_t> place_of;
  for (const auto& wanted : pass.wanted) {
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
    for (const auto& wanted : pass.wanted) {
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
    const auto chosen = logits.index_select(0, at_row).gather(1, on_device(ids).unsqueeze(1)).squeeze(1);
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

std::vector<RequestScore> score_requests(ModelRuntime& runtime, std::span<const ScoreRequest> requests,
                                         const ScoreRequestsOptions& options) {
  const WithoutAutograd guard;
  const auto& ranks = runtime.data_ranks();
  const auto groups = groups_of(requests, runtime.decoder().config);
  std::int64_t longest = 0, all_tokens = 0, done = 0;
  for (const auto& request : requests) longest = std::max(longest, std::ssize(request.context) + inputs_of(request));
  for (const auto& group : groups) all_tokens += group.tokens;
  const auto least_rows = options.alike ? RowwiseOps::kRowsAlike : 0;
  std::vector<double> sums(requests.size()), misses(requests.size());
  for (const auto& by_rank : passes_of(groups, options.micro_batch_size * longest, ranks.size)) {
    auto pass = pass_of(requests, groups, element(by_rank, ranks.rank));
    decode_segments(runtime, pass.segments, least_rows, [&](LayerParams head, const at::Tensor& x_ND) {
      if (!pass.segments.empty()) add_scores(runtime, head, x_ND, pass, least_rows, sums, misses);
    });
    runtime.synchronize();
    for (const auto& of_rank : by_rank) {
      for (const auto group : of_rank) done += groups[group].tokens;
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
