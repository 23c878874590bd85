// Counts the launches and host waits of a training step, for one CodeLlama-7b layer, its head and its optimizer, on the
// stub driver (stub_card.hpp): nothing is computed, but every launch is the real one.
//
//   gpu_launches [--json] [--check]      --check: fails if there are more than docs/results.md states
//
// FSDP_CUDA_KERNELS=off counts PyTorch's plain operators instead.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/gpu/counted_run.hpp"

namespace {

using namespace fsdp;
using namespace fsdp::test;

/// Returns two layers shaped like Gemma 2's (capped; only the first has a window) or Mistral's (both have one).
ModelConfig sliding_layers(bool capped) {
  auto config = codellama_layers();
  config.embed_size = 2048;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_size = 256;
  config.ffn_hidden_size = 8192;
  config.traits.window = 200;
  config.traits.sliding = {true, !capped};
  if (!capped) return config;
  config.traits.attention_softcap = 50;
  config.traits.logit_softcap = 30;
  config.traits.post_norms = config.traits.offset_norms = config.traits.gelu = true;
  return config;
}

/// Checks that each unit's gather begins before the preceding layer computes, in the forward and the backward pass.
/// \return the violation; empty if there is none
std::string gathered_late(const std::vector<std::string>& order) {
  for (int block = 1; block < kLayers; ++block) {
    const auto place = [&](const std::string& what, std::size_t from) {
      return static_cast<std::size_t>(std::find(order.begin() + static_cast<std::ptrdiff_t>(from), order.end(), what) -
                                      order.begin());
    };
    const auto gather = fmt::format("gather unit {}", block + 1), below = fmt::format("gather unit {}", block);
    const auto head = place("head and loss", 0);
    if (place(gather, 0) >= place(fmt::format("forward block {}", block - 1), 0))
      return fmt::format("block {}'s forward gather begins late", block);
    if (place(below, head) >= place(fmt::format("backward block {}", block), head))
      return fmt::format("block {}'s backward gather begins late", block - 1);
  }
  return {};
}

/// Divides counts by the number of equal parts, rounding up.
nlohmann::ordered_json as_json(const Counts& counts, int parts = 1) {
  const auto of_each = [&](int all) { return (all + parts - 1) / parts; };
  return {{"kernels", of_each(counts.kernels)},
          {"products", of_each(counts.products)},
          {"attention", of_each(counts.attention)}};
}

/// Checks that the host waits for the optimizer at the end of a step. \return the violation; empty if there is none
std::string ends_early(const std::shared_ptr<DeviceBackend>& backend, Run& adamw) {
  std::string early;
  if (adamw.observer().behind("AdamW").waits < 1) early += "A step does not wait for AdamW. ";
  Run lion(backend, 1, codellama_layers(), CudaGraphs::automatic, 1, "lion");
  lion.train();
  if (lion.observer().behind("Lion").waits < 1) early += "A step does not wait for Lion. ";
  return early;
}

/// Checks attention over rows of 512 tokens in two query blocks: per block two products in the forward and five in the
/// backward pass with one of our kernels between them if scores are capped; otherwise flash attention. \return the
/// violation; empty if there is none
std::string attends_otherwise(const std::shared_ptr<DeviceBackend>& backend, bool json) {
  std::string wrong;
  for (const bool capped : {true, false}) {
    Run run(backend, 1, sliding_layers(capped));
    run.train();
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const char* way : {"forward", "backward"}) {
        const bool forward = way[0] == 'f';
        const auto counts = run.observer().of(fmt::format("{} block {}", way, layer));
        const auto ours = std::count_if(counts.names.begin(), counts.names.end(), [&](const std::string& name) {
          return name.find(forward ? "12band_softmaxI" : "21band_softmax_backwardI") != std::string::npos;
        });
        if (!json)
          fmt::print("{}, {:<8} block {}: {:>3} kernels {:>3} products {:>3} attention, {} ours\n",
                     capped ? "windows and caps" : "windows", way, layer, counts.kernels, counts.products,
                     counts.attention, ours);
        const int products = (forward ? 4 : 8) + (capped ? 2 * (forward ? 2 : 5) : 0);
        const bool as_meant = counts.products == products && ours == (capped ? 2 : 0) &&
                              (capped ? counts.attention == 0 : counts.attention > 0);
        if (!as_meant) wrong += fmt::format("{} block {} attends otherwise than meant. ", way, layer);
      }
    }
  }
  return wrong;
}

/// Launches and waits of a step of GPT-2 small, without and with CUDA graphs.
struct GraphCounts {
  int launches = 0, with_graphs = 0, waits = 0, waits_with_graphs = 0;
  std::string wrong;  ///< empty if as expected
};

/// Plain operators do not support graphs; for them both counts are those without graphs.
GraphCounts count_graphs(const std::shared_ptr<DeviceBackend>& backend, int micro_batches) {
  const auto step_of = [](Run& run) {
    run.train();
    return run.observer().of("");  // take the counts before further calls
  };
  Run eager(backend, 1, gpt2(), CudaGraphs::off, micro_batches);
  const auto before = step_of(eager);
  if (!eager.has_kernels()) return {before.launches(), before.launches(), before.waits, before.waits, ""};
  Run graphs(backend, 1, gpt2(), CudaGraphs::on, micro_batches);
  const auto after = step_of(graphs);
  const auto recordings = graphs.recordings();
  GraphCounts counts{before.launches(), after.launches(), before.waits, after.waits, recordings.problem};
  // One graph each for the first, middle and last micro-batches; inputs, the loss sum and the optimizer remain outside.
  const int recorded = std::min(micro_batches, 3);
  if (recordings.recorded != recorded || after.graphs != micro_batches || after.products + after.attention != 0)
    counts.wrong += fmt::format("{} graphs were recorded and {} launched. ", recordings.recorded, after.graphs);
  // With a single micro-batch, products write gradients directly: no extra pass over each of the 148 gradients.
  if (micro_batches == 1 && before.launches() > 440) counts.wrong += "more launches than expected without graphs. ";
  if (after.launches() > 25 + 6 * micro_batches) counts.wrong += "more launches than expected beside graphs. ";
  if (after.waits != before.waits) counts.wrong += "the host does not wait as often with graphs. ";
  return counts;
}

int report(bool json, bool check) {
  std::string why_not;
  const auto backend = load_cuda_backend(&why_not);
  if (backend == nullptr) {
    fmt::print("skipped: {}\n", why_not);
    return 77;
  }
  const at::NoGradGuard no_grad;
  Run run(backend, 1);
  run.train();
  auto& counts = run.observer();
  const auto last = fmt::format("block {}", kLayers - 1);
  const auto forward = counts.of("forward " + last), backward = counts.of("backward " + last);
  const auto head = counts.of("head and loss");
  const int chunks = std::max(1, head.products / 3);
  auto optimizer = counts.of("AdamW");
  for (const char* part : {"gradient norm", "publish", "update "}) optimizer += counts.of(part);
  const int waits = counts.of("").waits - counts.of("outside").waits;  // waits outside of actions end the step
  const double megabytes = static_cast<double>(forward.bytes + backward.bytes) / (kRows * kLength) / 1e6;
  const int units = kLayers + 1;
  const double per_unit = static_cast<double>(optimizer.kernels + optimizer.copies) / units;
  Run of_four(backend, 4);
  of_four.train();
  const int waits_of_four = of_four.observer().of("").waits - of_four.observer().of("outside").waits;
  const auto summed = of_four.observer().of("reduce unit 1");
  const auto late = gathered_late(of_four.observer().order());
  const auto ends = counts.of("outside").waits;
  const auto one = count_graphs(backend, 1), four = count_graphs(backend, 4);
  const auto wrong = one.wrong + four.wrong + ends_early(backend, run);
  const auto otherwise = run.has_kernels() ? attends_otherwise(backend, json) : "";
  const auto early = run.wait_early(), early_of_four = of_four.wait_early();  // forgets what was counted
  if (json) {
    const nlohmann::ordered_json all{{"block_forward", as_json(forward)},
                                     {"block_backward", as_json(backward)},
                                     {"head", as_json(head, chunks)},
                                     {"head_chunks", chunks},
                                     {"sums_of_4_ranks", as_json(summed)},
                                     {"host_syncs_per_step", waits},
                                     {"host_syncs_per_step_of_4_ranks", waits_of_four},
                                     {"host_syncs_at_its_end", ends},
                                     {"host_syncs_to_begin_the_next", early.to_begin},
                                     {"host_syncs_to_begin_the_next_of_4_ranks", early_of_four.to_begin},
                                     {"host_syncs_behind_which_it_runs", early.to_finish},
                                     {"bytes_per_token_and_layer", megabytes * 1e6},
                                     {"launches_per_unit", per_unit},
                                     {"gathers_late", late},
                                     {"gpt2_launches_per_step", one.launches},
                                     {"gpt2_launches_with_graphs", one.with_graphs},
                                     {"gpt2_host_syncs", one.waits},
                                     {"gpt2_host_syncs_with_graphs", one.waits_with_graphs},
                                     {"gpt2_launches_of_4_micro_batches", four.launches},
                                     {"gpt2_launches_of_4_with_graphs", four.with_graphs}};
    fmt::print("{}\n", all.dump(2));
  } else {
    const auto line = [](const char* what, const Counts& c) {
      fmt::print("{:<16} {:>3} kernels {:>3} products {:>3} attention {:>3} copies {:>3} waits\n", what, c.kernels,
                 c.products, c.attention, c.copies, c.waits);
    };
    line("block forward", forward);
    line("block backward", backward);
    line(fmt::format("head, {} chunks", chunks).c_str(), head);
    line("optimizer", optimizer);
    fmt::print("a step waits {} times at its end; the next one begins after {} waits, {} with 4 ranks\n", ends,
               early.to_begin, early_of_four.to_begin);
    line("sums of 4 ranks", summed);
    fmt::print("{:.3f} MB per token and layer in kernels of ours, {:.1f} launches per unit by the optimizer\n",
               megabytes, per_unit);
    for (const auto* c : {&one, &four})
      fmt::print("GPT-2 small, {}: {} launches and {} waits a step; with graphs {} and {}\n",
                 c == &one ? "one micro-batch" : "four", c->launches, c->waits, c->with_graphs, c->waits_with_graphs);
    fmt::print("{}\n", late.empty() ? "every gather begins before the layer before it computes" : late);
  }
  if (std::getenv("FSDP_STUB_NAMES") != nullptr) {
    for (const Counts* part : std::initializer_list<const Counts*>{&forward, &head, &backward, &optimizer}) {
      for (const auto& name : part->names) fmt::print(stderr, "{}\n", name);
      fmt::print(stderr, "--\n");
    }
  }
  if (!check) return 0;
  if (!run.has_kernels()) {
    // One product per matrix of a layer (seven), two in the backward pass; four chunks of logits; one attention kernel.
    // The number of other kernels is up to PyTorch, but none may be ours.
    const bool plain = forward.products == 7 && backward.products == 14 && head.products == 12 &&
                       forward.attention == 1 && backward.attention >= 1 && megabytes == 0 && forward.kernels > 20 &&
                       backward.kernels > forward.kernels && late.empty();
    if (!plain) fmt::print("other operators than plain ones\n");
    return plain ? 0 : 1;
  }
  const bool few = chunks == 1 && forward.kernels <= 5 && forward.products <= 4 && backward.kernels <= 7 &&
                   backward.products <= 8 && head.kernels <= 4 + 2 * chunks && head.products <= 3 * chunks &&
                   waits == 0 && waits_of_four == 0 && summed.kernels <= 1 && ends <= 1 && early.to_begin == 0 &&
                   early_of_four.to_begin == 0 && early.to_finish <= 1 && per_unit <= 4 && megabytes <= 0.45;
  if (!few) fmt::print("more than expected\n");
  for (const auto& text : {otherwise, wrong}) {
    if (!text.empty()) fmt::print("{}\n", text);
  }
  return few && late.empty() && otherwise.empty() && wrong.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, check = false;
  for (int i = 1; i < argc; ++i) {
    json = json || std::strcmp(argv[i], "--json") == 0;
    check = check || std::strcmp(argv[i], "--check") == 0;
  }
  if (take_events() == nullptr) {  // not on the stub driver: start again with it
    if (std::getenv("LD_PRELOAD") != nullptr) return fmt::print(stderr, "another LD_PRELOAD is in the way\n"), 1;
    ::setenv("LD_PRELOAD", FSDP_STUB_DRIVER, 1);
    ::execv("/proc/self/exe", argv);
    return 1;
  }
  const int code = report(json, check);
  std::fflush(stdout);
  std::_Exit(code);  // skip static destruction, which would free kernel handles before their owners
}
