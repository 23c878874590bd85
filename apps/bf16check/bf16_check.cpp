#include "apps/bf16check/bf16_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "apps/bf16check/bf16_report.hpp"
#include "apps/bf16check/node_groups.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/bf16/bandwidth.hpp"
#include "lib/bf16/bf16_collectives.hpp"
#include "lib/bf16/error_counters.hpp"
#include "lib/bf16/facts.hpp"
#include "lib/bf16/nccl_log.hpp"
#include "lib/bf16/rank_comparison.hpp"
#include "lib/bf16/verdict.hpp"
#include "lib/compute/device/nvml.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/ranks/texts_of_ranks.hpp"

namespace fsdp {
namespace {

void check_options(const Bf16CheckOptions& o) {
  if (o.size_mb < 0 || o.size_mb > 16384) {
    throw UsageError(fmt::format("--size-mb is {}, choose from 1 to 16384, or 0 for the default", o.size_mb));
  }
}

std::vector<RankFacts> exchange(ProcessGroup& world, const RankFacts& local) {
  std::vector<RankFacts> ranks;
  for (const auto& text : texts_of_ranks(world, json_text(to_json(local))))
    ranks.push_back(rank_facts_from_json(parse_json(text, "a rank's facts")));
  return ranks;
}

/// Measures all-reduces over one group after another.
class ReduceProbe {
 public:
  ReduceProbe(Bf16FactSource& source, const Bf16CheckOptions& options, bool use_nccl, LibraryVersion nccl, NcclLog* log)
      : source_(source),
        device_(use_nccl ? source.device() : c10::Device(c10::kCPU)),
        use_nccl_(use_nccl),
        nccl_(nccl),
        log_(log),
        mpi_library_(options.mpi_library) {
    const std::int64_t mib = options.size_mb > 0 ? options.size_mb : (use_nccl ? 64 : 16);
    budget_.bytes = mib << 20;
    if (options.quick) budget_.seconds /= 4;
    budget_.checks = static_cast<int>(options.repeat);
  }

  /// \param on_one_node  whether the group's ranks are on one node and may be able to share memory
  /// \param facts        receives all-gathers and reduce-scatters, too; null: they are not measured
  ReduceFacts over(ProcessGroup& group, bool on_one_node, RankFacts* facts = nullptr) {
    auto budget = budget_;
    std::unique_ptr<Bf16Collectives> collectives;
    std::string transport = group.size() > 1 ? mpi_library_ : "";
    if (use_nccl_) {
      std::string failure;
      collectives = connect_nccl(group, failure);
      if (collectives == nullptr) return failed(group, failure);
    } else if (on_one_node && group.size() > 1) {
      constexpr std::int64_t kMostShared = std::int64_t{1} << 30;
      budget.bytes = std::min(budget.bytes, kMostShared / (group.size() + 1) / 4096 * 4096);
      collectives = make_shared_memory_collectives(group, budget.bytes);
      if (collectives != nullptr) transport = "shared memory";
    }
    if (collectives == nullptr) collectives = make_bf16_collectives(make_host_collectives(group), [] {});
    auto reduce = measure_reduce(group, *collectives, device_, budget);
    reduce.transport = use_nccl_ ? nccl_transport() : transport;
    if (facts != nullptr) {
      facts->gather = measure_gather(group, *collectives, device_, budget);
      facts->scatter = measure_scatter(group, *collectives, device_, budget);
    }
    return reduce;
  }

 private:
  /// \return null on every rank when one of them could not connect
  std::unique_ptr<Bf16Collectives> connect_nccl(ProcessGroup& group, std::string& failure) {
    std::unique_ptr<TensorCollectives> collectives;
    auto* backend = source_.backend();
    try {
      collectives = backend->make_collectives(group, device_.index());
    } catch (const RuntimeFailure& error) {
      failure = error.what();
    }
    if (any_rank(group, collectives == nullptr)) return nullptr;
    return make_bf16_collectives(std::move(collectives),
                                 [backend, index = device_.index()] { backend->synchronize(index); });
  }

  static ReduceFacts failed(const ProcessGroup& group, const std::string& failure) {
    ReduceFacts facts;
    facts.ranks = group.size();
    facts.failure = failure.empty() ? "NCCL failed on another rank" : failure;
    return facts;
  }

  std::string nccl_transport() const {
    auto text = "NCCL " + to_text(nccl_);
    const auto seen = log_ != nullptr ? log_->transport_since() : "";
    const char* wanted = std::getenv("NCCL_NET");
    if (!seen.empty()) return text + ", " + seen;
    return wanted != nullptr ? text + ", NCCL_NET=" + wanted : text;
  }

  Bf16FactSource& source_;
  c10::Device device_;
  bool use_nccl_;
  LibraryVersion nccl_;
  NcclLog* log_;
  std::string mpi_library_;
  CollectiveBudget budget_;
};

/// Measures each node with the next one in a ring. A slow node is slow with both neighbours; each neighbour is slow
/// with it only.
void measure_pairs(ProcessGroup& leaders, ReduceProbe& probe, RankFacts& facts) {
  const int nodes = leaders.size();
  const int rounds = nodes % 2 == 0 ? 2 : 3;
  for (int round = 0; round < rounds; ++round) {
    const auto pair = leaders.split(detail::pair_color(leaders.rank(), nodes, round));
    if (pair->size() != 2) continue;
    const auto hosts = pair->gather(facts.host, 0);
    const auto second = pair->broadcast_text(pair->rank() == 0 ? hosts[1] : "", 0);
    const auto first = pair->broadcast_text(pair->rank() == 0 ? hosts[0] : "", 0);
    facts.pairs.push_back({pair->rank() == 0 ? second : first, probe.over(*pair, false).bus_gb_per_s});
  }
}

}  // namespace

Bf16CheckResult run_bf16_check(ProcessGroup& world, Bf16FactSource& source, const Bf16CheckOptions& options,
                               const Logger& log, nlohmann::json& report) {
  check_options(options);
  std::optional<NcclLog> nccl_log;
  if (options.device != RequestedDevice::cpu) nccl_log.emplace();
  const auto [node, leaders, number] = NodeGroups(world);
  set_threads(*node, log);  // as in training
  auto facts = source.identify(world, *node, options.device);
  facts.node = number;
  const auto known = exchange(world, facts);
  const int num_nodes = 1 + std::max_element(known.begin(), known.end(), [](const auto& a, const auto& b) {
                              return a.node < b.node;
                            })->node;
  log.info(fmt::format("{} rank{} on {} node{}: measuring", world.size(), world.size() == 1 ? "" : "s", num_nodes,
                       num_nodes == 1 ? "" : "s"));
  if (!facts.gpu_missing.empty() && !facts.gpu_broken) log.info("no GPU is used: " + facts.gpu_missing);

  const auto gpu = facts.gpu ? NvmlGpu::open(facts.gpu->uuid, facts.gpu->pci_bus_id) : nullptr;
  const auto counts = error_counts(gpu.get());
  // All ranks measure at once, as in training, since a shared power limit shows only under full load.
  world.barrier();
  GemmBudget gemm;
  if (options.quick) gemm = {gemm.seconds_per_type / 4, 4096};
  const auto synchronize = [&source] {
    if (auto* backend = source.backend()) backend->synchronize(source.device().index());
  };
  facts.gemm = source.measure_gemm(gemm);
  facts.gemm.wrong = check_products(source.device(), synchronize, static_cast<int>(options.repeat));
  world.barrier();
  facts.bandwidth = measure_bandwidth(source.device(), synchronize, options.quick ? 0.05 : 0.2);
  world.barrier();

  // NCCL needs a GPU for each rank.
  std::vector<const RankFacts*> pointers;
  for (const auto& rank : known) pointers.push_back(&rank);
  const bool mine_alone = source.backend() != nullptr && detail::rank_on_same_gpu(pointers, facts) < 0;
  const bool use_nccl = every_rank(world, mine_alone);
  ReduceProbe probe(source, options, use_nccl, facts.gpu ? facts.gpu->nccl : LibraryVersion{},
                    nccl_log ? &*nccl_log : nullptr);
  facts.job_reduce = probe.over(world, num_nodes == 1, &facts);
  if (num_nodes == 1) {
    facts.node_reduce = facts.job_reduce;
  } else {
    facts.node_reduce = probe.over(*node, true);
    if (node->rank() == 0) {
      facts.across_reduce = probe.over(*leaders, false);
      if (num_nodes > 2) measure_pairs(*leaders, probe, facts);
    }
  }
  facts.counters = counter_facts(counts, error_counts(gpu.get()));
  source.finish(facts);

  const auto ranks = exchange(world, facts);
  Bf16CheckResult result;
  const auto answer = judge_bf16(ranks);
  result.exit_code = answer.verdict == Bf16Verdict::native ? ExitCode::ok : ExitCode::answer_no;
  if (world.rank() == 0) {
    result.table = bf16_table(ranks, answer);
    report = bf16_json(ranks, answer);
    if (!options.exclude_file.empty()) write_output(options.exclude_file, exclude_list(answer));
  }
  world.barrier();
  return result;
}

}  // namespace fsdp
