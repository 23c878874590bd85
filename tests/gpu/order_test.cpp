// Ranks call the same collectives in the same order, for all strategies with all optimizers and adapters: on the stub
// driver (stub_libraries.cpp), with ranks of MPI. NCCL matches calls by their order alone, so an order that differs
// mixes tensors without an error, or waits for ever. FSDP_ALL=1: every combination; without it a share of them.
#include "tests/support/torch_doctest.hpp"

#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/step/trainer.hpp"
#include "tests/gpu/gpu_support.hpp"
#include "tests/support/mpi_test.hpp"
#include "tests/support/tries.hpp"

namespace fsdp::test {
namespace {

using Lines = std::vector<std::string>;  ///< groups of collectives: "COMMUNICATOR RANKS: CALLS"

std::string communicator_of(const std::string& line) { return line.substr(0, line.find(':')); }

/// \return what is wrong; "" if all is right: on each communicator all of its ranks make the same calls, and the orders
/// of the ranks contain no circle, in which each rank waits for a collective that another issues later
std::string problem_of(const std::vector<Lines>& ranks) {
  std::map<std::string, std::vector<Lines>> calls;  // by communicator and rank
  for (const auto& lines : ranks) {
    std::map<std::string, Lines> of_rank;
    for (const auto& line : lines) of_rank[communicator_of(line)].push_back(line);
    for (auto& [name, its] : of_rank) calls[name].push_back(std::move(its));
  }
  for (const auto& [name, of_ranks] : calls) {
    if (std::to_string(of_ranks.size()) != name.substr(name.find(' ') + 1))
      return fmt::format("{} ranks call communicator {}", of_ranks.size(), name);
    for (const auto& other : of_ranks) {
      const auto [mine, theirs] = std::mismatch(of_ranks[0].begin(), of_ranks[0].end(), other.begin(), other.end());
      if (mine != of_ranks[0].end() || theirs != other.end())
        return fmt::format("call {} differs: {} | {}", mine - of_ranks[0].begin(),
                           mine == of_ranks[0].end() ? "none" : *mine, theirs == other.end() ? "none" : *theirs);
    }
  }
  // A collective runs when it is the next one of all of its ranks.
  std::vector<std::size_t> next(ranks.size(), 0);
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    std::map<std::string, std::vector<std::size_t>> waiting;  // ranks by communicator
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (next[r] < ranks[r].size()) waiting[communicator_of(ranks[r][next[r]])].push_back(r);
    }
    for (const auto& [name, who] : waiting) {
      if (who.size() != calls[name].size()) continue;
      for (const auto r : who) ++next[r];
      has_moved = true;
    }
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (next[r] < ranks[r].size()) return fmt::format("rank {} waits for ever in {}", r, ranks[r][next[r]]);
  }
  return "";
}

template <typename Function>
Function* of_stub(const char* name) {
  auto* const found = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) FAIL("not on the stub driver");
  return found;
}

/// \return on rank 0, by rank: the groups of collectives that body() issues
std::vector<Lines> traced(const std::function<void()>& body) {
  of_stub<void()>("fsdp_stub_trace_collectives")();
  body();
  std::string mine;
  of_stub<void(void (*)(void*, const char*), void*)>("fsdp_stub_take_collectives")(
      [](void* to, const char* text) { *static_cast<std::string*>(to) += std::string(text) + "\n"; }, &mine);
  std::vector<Lines> ranks;
  for (const auto& text : mpi_world().gather(mine, 0)) {
    std::istringstream stream(text);
    auto& lines = ranks.emplace_back();
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
  }
  return ranks;
}

struct Job {
  std::string name;
  std::string optimizer = "adamw";
  ShardingOptions options = {};
  int micro_batches = 1;
};

ModelConfig small_model(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  if (architecture == Architecture::llama) config.num_kv_heads = 1;
  config.num_layers = 2;
  config.num_heads = 2;
  config.embed_size = 32;  // which three ranks do not divide
  config.ffn_hidden_size = 64;
  config.vocab_size = 97;
  config.block_size = 32;
  return config;
}

/// Three steps: in the last one only the first rank has a row. The second begins before the first is reported.
void train(Architecture architecture, const Job& job) {
  constexpr std::int64_t kLength = 16;
  const at::NoGradGuard no_grad;
  auto& world = mpi_world();
  const auto model = small_model(architecture);
  ModelRuntime runtime(world, model, job.options, {at::Device(at::kCUDA, 0), cuda_backend(), nullptr, "stub", ""},
                       job.micro_batches);
  const std::int64_t rows = world.size() * job.micro_batches;
  const RandomLoader loader(3 * rows, kLength, model.vocab_size);
  TrainerOptions options;
  options.optimizer.kind = job.optimizer;
  options.batches = {1, rows, job.micro_batches};
  options.clip_grad_norm = 1.0;
  Trainer trainer(runtime, loader, options);
  for (int step = 0; step < 3; ++step) {
    trainer.begin_step(step == 2 ? 1 : rows, [] { return false; });
    const bool overlaps = step == 0 && trainer.begins_early();
    while (trainer.steps_under_way() > (overlaps ? 1 : 0)) trainer.finish_step();
  }
}

std::vector<Job> jobs(int ranks) {
  using Change = std::function<void(ShardingOptions&)>;
  const std::vector<std::pair<const char*, Change>> adapters{
      {"whole", {}},
      {"LoRA", [](ShardingOptions& o) { o.lora.rank = 4; }},
      {"DoRA", [](ShardingOptions& o) { o.lora.rank = 4, o.lora.dora = true; }},
      {"QLoRA", [](ShardingOptions& o) { o.lora.rank = 4, o.quantize.nf4 = true; }}};
  const std::vector<std::pair<const char*, Sharding>> strategies{
      {"full-shard", Sharding::full_shard},    {"grad-shard", Sharding::grad_shard},
      {"no-shard", Sharding::no_shard},        {"optimizer-shard", Sharding::optimizer_shard},
      {"hybrid", Sharding::hybrid_full_shard}, {"hybrid-grad", Sharding::hybrid_grad_shard}};
  const std::vector<std::pair<const char*, Change>> ways{
      {"", {}},
      {"float32", [](ShardingOptions& o) { o.precision = at::kFloat; }},
      {"recomputed", [](ShardingOptions& o) { o.checkpoint_every = 1; }},
      {"reduced each time", [](ShardingOptions& o) { o.reduce_every_micro_batch = true; }},
      {"offloaded", [](ShardingOptions& o) { o.cpu_offload = true; }}};
  std::vector<Job> all;
  const auto add = [&](const auto& strategy, const std::string& optimizer, const auto& adapter, const auto& way) {
    Job job{fmt::format("{} ranks, {}, {}, {} {}", ranks, strategy.first, optimizer, adapter.first, way.first),
            optimizer};
    job.options.sharding = strategy.second;
    job.options.shard_group_size = is_hybrid(strategy.second) ? (ranks == 4 ? 2 : 1) : 0;
    job.options.precision = at::kBFloat16;
    if (adapter.second) adapter.second(job.options);
    if (way.second) way.second(job.options);
    job.micro_batches = job.options.reduce_every_micro_batch ? 2 : 1;
    all.push_back(std::move(job));
  };
  for (const auto& strategy : strategies) {
    for (const auto& type : optimizer_types()) {
      for (const auto& adapter : adapters) add(strategy, std::string(type.name), adapter, ways[0]);
    }
    for (const auto& way : ways) add(strategy, "adamw", adapters[0], way);
  }
  return all;
}

}  // namespace

TEST_SUITE("gpu/order") {
  TEST_CASE("ranks call the same collectives in one order, for each strategy, optimizer and adapter") {
    int number = 0;
    for (const auto architecture : {Architecture::mingpt, Architecture::llama}) {
      for (const auto& job : jobs(mpi_world().size())) {
        if (!tries(number++, 7)) continue;
        CAPTURE(job.name);
        CAPTURE(architecture == Architecture::llama);
        const auto ranks = traced([&] { train(architecture, job); });
        if (mpi_world().rank() != 0) continue;
        CHECK(problem_of(ranks) == "");
        CHECK(ranks.size() == static_cast<std::size_t>(mpi_world().size()));
        CHECK(ranks[0].size() > 3);
      }
    }
  }

  TEST_CASE("an order that differs is found") {
    const std::string a0 = "a 2: all-gather 4;", a1 = "a 2: all-gather 8;", b0 = "b 2: all-reduce 1;",
                      c0 = "c 2: send 1;";
    CHECK(problem_of({{a0, a1}, {a0, a1}}) == "");
    CHECK(problem_of({{a0, b0, a1}, {a0, b0, a1}}) == "");
    CHECK(problem_of({{a0, a1}, {a1, a0}}).find("call 0 differs") != std::string::npos);
    CHECK(problem_of({{a0, a1}, {a0}}).find("call 1 differs") != std::string::npos);
    CHECK(problem_of({{a0}, {}}).find("1 ranks") != std::string::npos);
    CHECK(problem_of({{a0, b0}, {b0, a0}}).find("waits for ever") != std::string::npos);
    CHECK(problem_of({{a0, b0}, {b0, c0}, {c0, a0}}).find("waits for ever") != std::string::npos);
    CHECK(problem_of({{a0, b0}, {b0, c0}, {a0, c0}}) == "");
  }
}

}  // namespace fsdp::test
