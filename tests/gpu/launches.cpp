// Counts what a training step launches for one layer of CodeLlama-7b's shape, for its head and its optimizer, on the
// stub driver (stub_card.hpp), and where the host waits: nothing is computed, but every launch is the real one.
//
//   gpu_launches [--json] [--check]      --check: fails where there are more than docs/results.md says
//
// FSDP_CUDA_KERNELS=off counts PyTorch's plain operators instead.
#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/comm/device_backend.hpp"
#include "lib/fsdp/observer.hpp"
#include "lib/memory/ranks.hpp"
#include "lib/ops/fused_ops.hpp"
#include "lib/runtime/model_runtime.hpp"
#include "lib/train/trainer.hpp"

namespace {

using namespace fsdp;

constexpr std::int64_t kRows = 4, kLength = 512;
constexpr int kLayers = 2;

struct Counts {
  int kernels = 0, products = 0, attention = 0, copies = 0, waits = 0, graphs = 0;
  std::int64_t bytes = 0;  ///< of kernels of ours
  std::vector<std::string> names;

  Counts& operator+=(const Counts& other) {
    kernels += other.kernels;
    products += other.products;
    attention += other.attention;
    copies += other.copies;
    waits += other.waits;
    graphs += other.graphs;
    bytes += other.bytes;
    names.insert(names.end(), other.names.begin(), other.names.end());
    return *this;
  }
  /// What the host asks for.
  int launches() const { return kernels + products + attention + copies + graphs; }
};

using TakeEvents = void (*)(void (*each)(void*, int, const char*, std::int64_t), void* context);

TakeEvents take_events() { return reinterpret_cast<TakeEvents>(::dlsym(RTLD_DEFAULT, "fsdp_stub_take_events")); }

void add_event(void* context, int kind, const char* name, std::int64_t bytes) {
  auto& counts = *static_cast<Counts*>(context);
  const bool attends = std::strstr(name, "flash_") != nullptr || std::strstr(name, "fmha_") != nullptr;
  counts.kernels += kind == 0 && !attends ? 1 : 0;
  counts.products += kind == 1 ? 1 : 0;
  counts.attention += kind == 2 || attends ? 1 : 0;
  counts.copies += kind == 3 ? 1 : 0;
  counts.waits += kind == 4 ? 1 : 0;
  counts.graphs += kind == 5 ? 1 : 0;
  counts.bytes += bytes;
  if (kind == 0) counts.names.emplace_back(name);
}

Counts counted() {
  Counts counts;
  take_events()(add_event, &counts);
  return counts;
}

ModelConfig codellama_layers() {
  ModelConfig config;
  config.architecture = Architecture::llama;
  config.num_layers = kLayers;
  config.num_heads = config.num_kv_heads = 32;
  config.embed_size = 4096;
  config.ffn_hidden_size = 11008;
  config.vocab_size = 32016;
  config.block_size = 16384;
  return config;
}

/// GPT-2 small.
ModelConfig gpt2() {
  ModelConfig config;
  config.num_layers = config.num_heads = 12;
  config.embed_size = 768;
  config.ffn_hidden_size = 3072;
  config.vocab_size = 50257;
  config.block_size = 1024;
  return config;
}

/// Of Gemma 2's and of Mistral's shape: the first of two layers slides, or both do.
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

/// What is launched while the engine and the trainer are at each of their actions, without what those within it launch.
class CountingObserver final : public EngineObserver {
 public:
  void begin(std::string_view what, std::string_view) override {
    settle();
    open_.emplace_back(what);
    order_.emplace_back(what);
  }
  void end() override {
    settle();
    open_.pop_back();
  }
  /// Everything so far counts for nothing.
  void forget() {
    static_cast<void>(counted());
    counts_.clear();
    order_.clear();
  }
  /// Of actions whose names begin so.
  Counts of(std::string_view beginning) {
    settle();
    Counts sum;
    for (const auto& [name, counts] : counts_) {
      if (name.starts_with(beginning)) sum += counts;
    }
    return sum;
  }
  const std::vector<std::string>& order() const { return order_; }

 private:
  void settle() { counts_[open_.empty() ? "outside" : open_.back()] += counted(); }

  std::vector<std::string> open_, order_;
  std::map<std::string, Counts> counts_;
};

/// A training run in bf16, as rank 0 of so many.
class Run {
 public:
  Run(const std::shared_ptr<DeviceBackend>& backend, int ranks, const ModelConfig& config = codellama_layers(),
      CudaGraphs graphs = CudaGraphs::automatic, int micro_batches = 1)
      : world_(
            make_lone_rank({ranks, ranks, 0}, [](ProcessGroup& group) { make_mesh(group, Sharding::full_shard, 0); })),
        rows_(kRows * ranks * micro_batches),
        runtime_(*world_, config, sharding(graphs), {at::Device(at::kCUDA, 0), backend, nullptr, "stub", ""},
                 micro_batches),
        loader_(rows_ * kSteps, kLength, config.vocab_size),
        trainer_(runtime_, loader_, options(rows_, micro_batches)) {
    runtime_.engine().observers().add(observer_);
  }

  /// The last of a few steps: tables are made once.
  void train() {
    for (int step = 0; step < kSteps; ++step) {
      observer_.forget();
      trainer_.step(rows_, [] { return false; });
    }
  }

  CountingObserver& observer() { return observer_; }
  bool has_kernels() const { return runtime_.ops().recorder() != nullptr; }
  RecordingCounts recordings() { return runtime_.engine().recording_counts(); }

 private:
  static constexpr int kSteps = 3;
  static ShardingOptions sharding(CudaGraphs graphs) {
    ShardingOptions options;
    options.cuda_graphs = graphs;
    options.precision = at::kBFloat16;
    return options;
  }
  static TrainerOptions options(std::int64_t rows, int micro_batches) {
    TrainerOptions options;
    options.batches = {kRows, rows, micro_batches};
    options.clip_grad_norm = 1.0;
    return options;
  }

  std::unique_ptr<ProcessGroup> world_;
  std::int64_t rows_;
  ModelRuntime runtime_;
  RandomLoader loader_;
  Trainer trainer_;
  CountingObserver observer_;
};

/// Every unit's gather begins before the layer that comes before it computes, forward and backward. \return what breaks
/// that; empty: nothing does
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

nlohmann::ordered_json as_json(const Counts& counts) {
  return {{"kernels", counts.kernels}, {"products", counts.products}, {"attention", counts.attention}};
}

/// Attention of rows of 512 tokens, two blocks of queries each: two products a block forward, and five back, with a
/// kernel of ours between them where scores are capped; else one of flash's. \return what is otherwise; empty: nothing
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

/// A step of GPT-2 small, as it comes and as CUDA graphs.
struct GraphCounts {
  int launches = 0, with_graphs = 0, waits = 0, waits_with_graphs = 0;
  std::string wrong;  ///< empty: nothing
};

/// \return of plain operators, which graphs do not take, those of the step as it comes twice
GraphCounts count_graphs(const std::shared_ptr<DeviceBackend>& backend, int micro_batches) {
  const auto step_of = [](Run& run) {
    run.train();
    return run.observer().of("");  // before anything else is asked for
  };
  Run eager(backend, 1, gpt2(), CudaGraphs::off, micro_batches);
  const auto before = step_of(eager);
  if (!eager.has_kernels()) return {before.launches(), before.launches(), before.waits, before.waits, ""};
  Run graphs(backend, 1, gpt2(), CudaGraphs::on, micro_batches);
  const auto after = step_of(graphs);
  const auto recordings = graphs.recordings();
  GraphCounts counts{before.launches(), after.launches(), before.waits, after.waits, recordings.problem};
  // First, middle ones and last; what is left are inputs, the losses' sum, and the optimizer.
  const int recorded = std::min(micro_batches, 3);
  if (recordings.recorded != recorded || after.graphs != micro_batches || after.products + after.attention != 0)
    counts.wrong += fmt::format("{} graphs were recorded and {} launched. ", recordings.recorded, after.graphs);
  // Alone, products write gradients where they stay: no pass over each of the 148 behind them.
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
  auto optimizer = counts.of("AdamW");
  for (const char* part : {"gradient norm", "publish", "update "}) optimizer += counts.of(part);
  const int waits = counts.of("").waits - counts.of("outside").waits;  // those outside end the step
  const double megabytes = static_cast<double>(forward.bytes + backward.bytes) / (kRows * kLength) / 1e6;
  const int units = kLayers + 1;
  const double per_unit = static_cast<double>(optimizer.kernels + optimizer.copies) / units;
  Run of_four(backend, 4);
  of_four.train();
  const auto late = gathered_late(of_four.observer().order());
  const auto one = count_graphs(backend, 1), four = count_graphs(backend, 4);
  const auto wrong = one.wrong + four.wrong;
  const auto otherwise = run.has_kernels() ? attends_otherwise(backend, json) : "";
  if (json) {
    const nlohmann::ordered_json all{{"block_forward", as_json(forward)},
                                     {"block_backward", as_json(backward)},
                                     {"head", as_json(head)},
                                     {"host_syncs_per_step", waits},
                                     {"host_syncs_at_its_end", counts.of("outside").waits},
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
      fmt::print("{:<15} {:>3} kernels {:>3} products {:>3} attention {:>3} copies {:>3} waits\n", what, c.kernels,
                 c.products, c.attention, c.copies, c.waits);
    };
    line("block forward", forward);
    line("block backward", backward);
    line("head", head);
    line("optimizer", optimizer);
    line("step's end", counts.of("outside"));
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
    // A product for each of a layer's seven matrices, twice back; four chunks of logits; one kernel that attends. How
    // many others there are is PyTorch's business, but none is ours.
    const bool plain = forward.products == 7 && backward.products == 14 && head.products == 12 &&
                       forward.attention == 1 && backward.attention >= 1 && megabytes == 0 && forward.kernels > 20 &&
                       backward.kernels > forward.kernels && late.empty();
    if (!plain) fmt::print("other operators than plain ones\n");
    return plain ? 0 : 1;
  }
  const bool few = forward.kernels <= 5 && forward.products <= 4 && backward.kernels <= 7 && backward.products <= 8 &&
                   head.kernels <= 12 && head.products <= 12 && waits == 0 && counts.of("outside").waits <= 2 &&
                   per_unit <= 4 && megabytes <= 0.45;
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
  if (take_events() == nullptr) {  // not on the stub driver: begin again on it
    if (std::getenv("LD_PRELOAD") != nullptr) return fmt::print(stderr, "another LD_PRELOAD is in the way\n"), 1;
    ::setenv("LD_PRELOAD", FSDP_STUB_DRIVER, 1);
    ::execv("/proc/self/exe", argv);
    return 1;
  }
  const int code = report(json, check);
  std::fflush(stdout);
  std::_Exit(code);  // kernels' handles are gone before what holds them
}
