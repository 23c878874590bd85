// No two streams touch the same memory without an order between them (stub_races.hpp): whole steps of all strategies.
#include "tests/support/torch_doctest.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/fake_group.hpp"
#include "lib/training/state/snapshot.hpp"
#include "lib/training/step/trainer.hpp"
#include "tests/gpu/gpu_support.hpp"
#include "tests/support/temp_files.hpp"

namespace fsdp::test {
namespace {

template <typename Function>
Function* of_stub(const char* name) {
  auto* const found = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) FAIL("not on the stub driver");
  return found;
}

struct Watched {
  std::vector<std::string> orders;  ///< records and waits, in order
  std::vector<std::string> races;
};

/// Runs body() while the stub driver watches. \param dropped  index + 1 of an order that does nothing; 0: none
Watched watch(const std::function<void()>& body, std::size_t dropped = 0) {
  static auto* const allocated = of_stub<void(const void*, std::int64_t, const void*)>("fsdp_stub_allocated");
  static const bool attached = [] {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const auto& entry) {
      if (entry.action_ == entry.ALLOC)
        allocated(reinterpret_cast<const void*>(entry.addr_), static_cast<std::int64_t>(entry.size_), entry.stream_);
    });
    return true;
  }();
  REQUIRE(attached);
  of_stub<void(std::size_t)>("fsdp_stub_watch_races")(dropped);
  body();
  Watched watched;
  of_stub<void(void (*)(void*, bool, const char*), void*)>("fsdp_stub_take_races")(
      [](void* to, bool is_race, const char* text) {
        auto& all = *static_cast<Watched*>(to);
        (is_race ? all.races : all.orders).emplace_back(text);
      },
      &watched);
  return watched;
}

struct Job {
  std::string name;
  int ranks = 4, micro_batches = 1;
  std::string optimizer = "adamw";
  ShardingOptions options = {};
};

ModelConfig deep_model() {
  ModelConfig config;
  config.num_layers = 4;
  config.num_heads = 2;
  config.embed_size = 32;
  config.ffn_hidden_size = 128;
  config.vocab_size = 97;
  config.block_size = 64;
  return config;
}

/// Two steps, the second of which begins early where it can, a copy for a checkpoint, and one more step.
void train(const Job& job) {
  constexpr std::int64_t kRows = 2, kLength = 32;
  constexpr int kSteps = 3;
  const at::NoGradGuard no_grad;
  const auto world = make_lone_rank({job.ranks, job.ranks, 0}, [&](ProcessGroup& group) {
    make_mesh(group, job.options.sharding, job.options.shard_group_size);
  });
  ModelRuntime runtime(*world, deep_model(), job.options,
                       {at::Device(at::kCUDA, 0), cuda_backend(), nullptr, "stub", ""},
                       {job.micro_batches, takes_bf16_gradients({.kind = job.optimizer})});
  const auto rows = kRows * job.ranks * job.micro_batches;
  const RandomLoader loader(rows * kSteps, kLength, deep_model().vocab_size);
  TrainerOptions options;
  options.optimizer.kind = job.optimizer;
  options.batches = {kRows, rows, job.micro_batches};
  options.clip_grad_norm = 1.0;
  Trainer trainer(runtime, loader, options);
  for (int step = 0; step < kSteps; ++step) {
    trainer.begin_step(rows, [] { return false; });
    const bool overlaps = step == 0 && trainer.begins_early();
    while (trainer.steps_under_way() > (overlaps ? 1 : 0)) trainer.finish_step();
    if (step == 1) static_cast<void>(copy_shards(runtime, trainer.optimizer()));
  }
}

ShardingOptions with(Sharding sharding, const std::function<void(ShardingOptions&)>& change = {}) {
  ShardingOptions options;
  options.sharding = sharding;
  options.shard_group_size = is_hybrid(sharding) ? 2 : 0;
  options.precision = at::kBFloat16;
  if (change) change(options);
  return options;
}

std::vector<Job> jobs(const std::string& folder) {
  const auto full = Sharding::full_shard, replicated = Sharding::no_shard;
  const auto recomputed = [](ShardingOptions& o) { o.checkpoint_every = 1; };
  const auto offloaded = [](ShardingOptions& o) { o.cpu_offload = true; };
  const auto each = [](ShardingOptions& o) { o.reduce_every_micro_batch = true; };
  const auto graphs = [](ShardingOptions& o) { o.cuda_graphs = CudaGraphs::on; };
  const auto states = [&](OffloadConfig::Place place) {
    return [=](ShardingOptions& o) { o.offload_optimizer = {place, folder, 0}; };
  };
  const auto parameters = [&](ShardingOptions& o) {
    o.offload_optimizer = {OffloadConfig::Place::nvme, folder, 0};
    o.offload_parameters = true;
  };
  const auto activations = [](ShardingOptions& o) {
    o.checkpoint_every = 1;
    o.offload_activations = true;
  };
  const auto adapters = [](ShardingOptions& o) {
    o.lora.rank = 4;
    o.cpu_offload = true;
  };
  return {{"full-shard", 4, 1, "adamw", with(full)},
          {"full-shard, float32", 4, 1, "adamw", with(full, [](ShardingOptions& o) { o.precision = at::kFloat; })},
          {"full-shard, recomputed", 4, 2, "adamw", with(full, recomputed)},
          {"full-shard, reduced each time", 4, 2, "lion", with(full, each)},
          {"anyprecision", 4, 1, "anyprecision", with(full)},
          {"grad-shard", 4, 2, "adamw", with(Sharding::grad_shard)},
          {"no-shard", 4, 2, "adamw", with(replicated)},
          {"hybrid", 4, 1, "adamw", with(Sharding::hybrid_full_shard)},
          {"hybrid, accumulated", 4, 2, "adamw", with(Sharding::hybrid_grad_shard, each)},
          {"offload", 4, 1, "adamw", with(full, offloaded)},
          {"offload of one rank", 1, 2, "adamw", with(full, offloaded)},
          {"offload of replicas", 4, 1, "adamw", with(replicated, offloaded)},
          {"offload of hybrid", 4, 2, "adamw", with(Sharding::hybrid_full_shard, offloaded)},
          {"offload of adapters", 4, 1, "adamw", with(full, adapters)},
          {"offload of one rank's adapters", 1, 1, "adamw", with(full, adapters)},
          {"states on the host", 4, 1, "adamw", with(full, states(OffloadConfig::Place::cpu))},
          {"states on a disk", 4, 2, "adamw", with(full, states(OffloadConfig::Place::nvme))},
          {"activations on the host", 4, 2, "adamw", with(full, activations)},
          {"activations of one rank on the host", 1, 2, "adamw", with(full, activations)},
          {"parameters on a disk", 4, 2, "adamw", with(full, parameters)},
          {"parameters of one rank on a disk", 1, 1, "adamw", with(full, parameters)},
          {"optimizer-shard", 4, 2, "adamw", with(Sharding::optimizer_shard)},
          {"optimizer-shard, float32", 4, 1, "adamw",
           with(Sharding::optimizer_shard, [](ShardingOptions& o) { o.precision = at::kFloat; })},
          {"graphs", 1, 3, "adamw", with(full, graphs)},
          {"graphs of replicas", 4, 3, "adamw", with(replicated, graphs)},
          {"muon", 4, 1, "muon", with(full)},
          {"adafactor", 4, 1, "adafactor", with(full)},
          {"adamw8bit", 4, 1, "adamw8bit", with(Sharding::hybrid_full_shard)}};
}

}  // namespace

TEST_SUITE("gpu/races") {
  TEST_CASE("no step has a race") {
    const TempDir folder;
    for (const auto& job : jobs(folder.path().string())) {
      CAPTURE(job.name);
      const auto watched = watch([&] { train(job); });
      for (const auto& race : watched.races) FAIL_CHECK(race);
      CHECK(watched.orders.size() > 100);
    }
  }

  TEST_CASE("each removed record or wait is found") {
    struct Place {
      const char *what, *job, *order, *race;  // the last two are regular expressions
    };
    const std::vector<Place> places{
        {"a gather waits until its buffer is free", "full-shard", "wait of .* after NCCL for .* after allocation",
         "NCCL writes .* what allocation writes"},
        {"a gather waits for the optimizer", "full-shard", "wait of .* after NCCL for", "NCCL reads .*adamw.* writes"},
        {"a sum waits for its gradients", "full-shard", "wait of .* after NCCL for",
         "NCCL reads .*(column_sums|embed_backward|cublas).* writes"},
        {"the sum of the norm waits for this rank's", "full-shard", "wait of .* after NCCL for .*total_sum",
         "NCCL reads .*total_sum.* writes"},
        {"a layer waits for its gather", "full-shard", "wait of stream 0 .* for .* after NCCL",
         "(column_pass|norm_|cublas).* reads .* what NCCL writes"},
        {"arrived sums are widened afterwards", "full-shard, reduced each time",
         "wait of stream 0 .* for .* after NCCL", "upcast_sums.* reads .* what NCCL writes"},
        {"the norm reads sums that have arrived", "full-shard", "wait of stream 0 .* for .* after NCCL",
         "sum_squares.* reads .* what NCCL writes"},
        {"the decision waits for the norm", "full-shard", "wait of stream 0 .* for .* after NCCL",
         "decide_step.* reads .* what NCCL writes"},
        {"an event is recorded behind a gather", "full-shard", "record on .* after NCCL",
         "(column_pass|norm_|cublas).* reads .* what NCCL writes"},
        {"an event is recorded before a gather", "full-shard", "record on stream 0 after allocation",
         "NCCL writes .* what allocation writes"},
        {"a sum over replicas waits for the shards' sum", "hybrid", "wait of .* NCCL",
         "NCCL reads .* what NCCL writes"},
        {"the norm waits for sums over replicas", "graphs of replicas", "wait of stream 0 .* for .* after NCCL",
         "sum_squares.* reads .* what NCCL writes"},
        {"a copy waits for the gradient", "offload of one rank",
         "wait of stream 1 after copy for stream 0 after .*(column_sums|embed_backward)",
         "copy reads .*(cublas|column_sums|embed_backward).* writes"},
        {"memory is reused after its copy", "offload of one rank",
         "wait of stream 0 after .*(cublas|column_sums|embed_backward).* for stream 1 after copy",
         "allocation writes .* what copy reads"},
        {"a layer waits for frozen rows", "offload of one rank's adapters",
         "wait of stream 0 after .*column_pass.* for .* after copy",
         "column_pass.* reads on stream 0 what copy writes"},
        {"frozen rows wait until their buffer is free", "offload of one rank's adapters",
         "wait of .* after copy for .* after allocation", "copy writes .* what allocation writes"},
    };
    const TempDir folder;
    const auto all = jobs(folder.path().string());
    std::map<std::string, Watched> whole;
    for (const auto& [what, name, order, race] : places) {
      INFO(std::string(what));
      const auto job = std::find_if(all.begin(), all.end(), [&](const Job& one) { return one.name == name; });
      REQUIRE(job != all.end());
      auto& orders = whole[name].orders;
      if (orders.empty()) whole[name] = watch([&] { train(*job); });
      // Several orders in a row may be alike, of which one is needed. The search begins at the end of the last step.
      int tries = 0;
      bool found = false;
      for (auto k = orders.size(); !found && k > 0 && tries < 60; --k) {
        if (!std::regex_search(orders[k - 1], std::regex(order))) continue;
        ++tries;
        const auto races = watch([&] { train(*job); }, k).races;
        found = std::any_of(races.begin(), races.end(),
                            [&](const std::string& text) { return std::regex_search(text, std::regex(race)); });
      }
      CHECK(found);
    }
  }
}

}  // namespace fsdp::test
