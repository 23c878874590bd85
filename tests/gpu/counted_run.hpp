#pragma once
// Training steps on the stub driver (stub_card.hpp), with their calls to the driver counted per action.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/compute/device/observer.hpp"
#include "lib/engine/collectives/device_backend.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/fake_group.hpp"
#include "lib/training/step/trainer.hpp"

namespace fsdp::test {

inline constexpr std::int64_t kRows = 4, kLength = 512;
inline constexpr int kLayers = 2;

struct Counts {
  int kernels = 0, products = 0, attention = 0, copies = 0, waits = 0, graphs = 0;
  std::int64_t bytes = 0;  ///< read and written by this project's kernels
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
  /// Returns the number of calls by which the host starts work.
  int launches() const { return kernels + products + attention + copies + graphs; }
};

using TakeEvents = void (*)(void (*each)(void*, int, const char*, std::int64_t), void* context);

inline TakeEvents take_events() { return reinterpret_cast<TakeEvents>(::dlsym(RTLD_DEFAULT, "fsdp_stub_take_events")); }

inline void add_event(void* context, int kind, const char* name, std::int64_t bytes) {
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

inline Counts counted() {
  Counts counts;
  take_events()(add_event, &counts);
  return counts;
}

inline ModelConfig codellama_layers() {
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

/// Returns the configuration of GPT-2 small.
inline ModelConfig gpt2() {
  ModelConfig config;
  config.num_layers = config.num_heads = 12;
  config.embed_size = 768;
  config.ffn_hidden_size = 3072;
  config.vocab_size = 50257;
  config.block_size = 1024;
  return config;
}

/// Counts launches during each action of the engine and the trainer; an action does not include actions nested in it.
class CountingObserver final : public EngineObserver {
 public:
  void begin(std::string_view what, std::string_view) override {
    settle();
    open_.emplace_back(what);
    order_.emplace_back(what);
  }
  void end() override {
    settle();
    last_ = open_.back();
    open_.pop_back();
  }
  /// Resets all counts.
  void forget() {
    static_cast<void>(counted());
    counts_.clear();
    behind_.clear();
    order_.clear();
  }
  /// Returns the sum over actions whose names begin with `beginning`.
  Counts of(std::string_view beginning) {
    settle();
    return sum_of(counts_, beginning);
  }
  /// Returns the launches outside of all actions that follow an action whose name begins with `beginning`.
  Counts behind(std::string_view beginning) {
    settle();
    return sum_of(behind_, beginning);
  }
  const std::vector<std::string>& order() const { return order_; }

 private:
  static Counts sum_of(const std::map<std::string, Counts>& parts, std::string_view beginning) {
    Counts sum;
    for (const auto& [name, counts] : parts) {
      if (name.starts_with(beginning)) sum += counts;
    }
    return sum;
  }
  void settle() {
    const auto found = counted();
    counts_[open_.empty() ? "outside" : open_.back()] += found;
    if (open_.empty()) behind_[last_] += found;
  }

  std::vector<std::string> open_, order_;
  std::string last_;  ///< name of the action that ended last
  std::map<std::string, Counts> counts_, behind_;
};

/// A bf16 training run, as rank 0 of `ranks` ranks.
class Run {
 public:
  Run(const std::shared_ptr<DeviceBackend>& backend, int ranks, const ModelConfig& config = codellama_layers(),
      CudaGraphs graphs = CudaGraphs::automatic, int micro_batches = 1, const std::string& optimizer = "adamw")
      : world_(
            make_lone_rank({ranks, ranks, 0}, [](ProcessGroup& group) { make_mesh(group, Sharding::full_shard, 0); })),
        rows_(kRows * ranks * micro_batches),
        runtime_(*world_, config, sharding(graphs), {at::Device(at::kCUDA, 0), backend, nullptr, "stub", ""},
                 {micro_batches, takes_bf16_gradients({.kind = optimizer})}),
        loader_(rows_ * kSteps, kLength, config.vocab_size),
        trainer_(runtime_, loader_, options(rows_, micro_batches, optimizer)) {
    runtime_.engine().observers().add(observer_);
  }

  /// Trains a few steps and counts only the last: the first steps build tables.
  void train() {
    for (int step = 0; step < kSteps; ++step) {
      observer_.forget();
      trainer_.step(rows_, [] { return false; });
    }
  }

  /// Host waits of a step that begins while the one before it is under way: until the host has asked for all of it, and
  /// for the end of the one before it, which the device is then working on.
  struct EarlyWaits {
    int to_begin = 0, to_finish = 0;
  };
  /// Call after train(). A run that cannot begin steps early waits to begin.
  EarlyWaits wait_early() {
    const auto waits_of = [&](const auto& body) {
      observer_.forget();
      body();
      return observer_.of("").waits;
    };
    const auto begin = [&] { trainer_.begin_step(rows_, [] { return false; }); };
    begin();
    EarlyWaits waits;
    if (!trainer_.begins_early()) waits.to_begin += waits_of([&] { trainer_.finish_step(); });
    waits.to_begin += waits_of(begin);
    waits.to_finish = waits_of([&] { trainer_.finish_step(); });
    if (trainer_.steps_under_way() > 0) trainer_.finish_step();
    return waits;
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
  static TrainerOptions options(std::int64_t rows, int micro_batches, const std::string& optimizer) {
    TrainerOptions options;
    options.optimizer.kind = optimizer;
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

}  // namespace fsdp::test
