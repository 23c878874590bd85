#include "apps/bf16check/launch_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "apps/bf16check/node_groups.hpp"
#include "apps/bf16check/shared_folder.hpp"
#include "lib/base/process/plugin.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/stop_signal.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"

namespace fsdp {

// Not in the namespace below, where the JSON library would not find the functions that this defines.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchFacts, rank, node, host, cores, node_cores, memory, memlock, shared,
                                   has_fabric, gpu)

namespace {

/// The cores of this node that the job may use: as the scheduler says, else those of the launcher.
int cores_of_job() {
  const auto own = static_cast<int>(allowed_cores().size());
  for (const char* variable : {"SLURM_CPUS_ON_NODE", "NCPUS"}) {
    const char* text = std::getenv(variable);
    if (const int cores = text == nullptr ? 0 : std::atoi(text); cores > 0) return std::max(cores, own);
  }
  return std::max(own, static_cast<int>(allowed_cores(::getppid()).size()));
}

LaunchFacts own_facts(const RankFacts& device) {
  LaunchFacts facts;
  facts.rank = device.rank;
  facts.node = device.node;
  facts.host = device.host;
  facts.cores = allowed_cores();
  facts.node_cores = cores_of_job();
  if (const auto memory = machine_memory_bytes(); memory > 0) facts.memory = memory;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    facts.memlock = static_cast<std::int64_t>(limit.rlim_cur);
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0)
    facts.shared = static_cast<std::int64_t>(shared.f_blocks) * static_cast<std::int64_t>(shared.f_frsize);
  for (const char* kind : {"/sys/class/infiniband", "/sys/class/cxi"}) {
    std::error_code error;
    const bool empty = std::filesystem::is_empty(kind, error);
    if (!error && !empty) facts.has_fabric = true;
  }
  if (device.gpu) facts.gpu = fmt::format("{} {}", device.gpu->name, device.gpu->pci_bus_id);
  return facts;
}

/// "0-3,8": ranges of ascending numbers
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    auto end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (end - i > 1) text += fmt::format("-{}", numbers[end - 1]);
    i = end;
  }
  return text;
}

/// Ranks by node.
std::map<int, std::vector<const LaunchFacts*>> by_node(const std::vector<LaunchFacts>& ranks) {
  std::map<int, std::vector<const LaunchFacts*>> nodes;
  for (const auto& rank : ranks) nodes[rank.node].push_back(&rank);
  return nodes;
}

LaunchFinding ranks_finding(const std::vector<LaunchFacts>& ranks) {
  std::set<std::size_t> sizes;
  const auto nodes = by_node(ranks);
  for (const auto& [node, members] : nodes) sizes.insert(members.size());
  LaunchFinding finding{
      "ranks",
      fmt::format("{} on {}, {} per node", format_count_of(static_cast<std::int64_t>(ranks.size()), "rank"),
                  format_count_of(static_cast<std::int64_t>(nodes.size()), "node"), fmt::join(sizes, " or ")),
      ""};
  if (sizes.size() > 1)
    finding.advice =
        "nodes have different numbers of ranks: give the launcher the number per node (--ntasks-per-node, -ppn)";
  return finding;
}

LaunchFinding cores_finding(const std::vector<LaunchFacts>& ranks, bool by_open_mpi) {
  LaunchFinding finding{"cores", "", ""};
  std::set<std::string> seen;
  for (const auto& rank : ranks) seen.insert(fmt::format("{} of {}", rank.cores.size(), rank.node_cores));
  finding.fact = fmt::format("{} per rank", fmt::join(seen, ", "));
  for (const auto& [node, members] : by_node(ranks)) {
    std::set<int> taken;
    bool shared = false, alike = true;
    for (const auto* rank : members) {
      alike = alike && rank->cores == members.front()->cores;
      for (const int core : rank->cores) shared = !taken.insert(core).second || shared;
    }
    const auto used = taken.size();
    if (used < members.size() || (shared && !alike)) {
      finding.advice = fmt::format("ranks of {} share cores (rank {} has {}): ", members.front()->host,
                                   members.back()->rank, ranges(members.back()->cores));
    } else if (static_cast<int>(used) * 2 <= members.front()->node_cores) {
      finding.advice = fmt::format("the ranks of {} use {} of its {} cores: ", members.front()->host, used,
                                   members.front()->node_cores);
    }
    if (!finding.advice.empty()) {
      finding.advice += by_open_mpi
                            ? "mpirun binds to cores; give it --bind-to none, or --map-by ppr:RANKS:node:PE=CORES"
                            : "ask for more cores per rank (srun --cpus-per-task, DEPTH and CPU_BIND under PBS)";
      break;
    }
  }
  return finding;
}

LaunchFinding gpu_finding(const std::vector<LaunchFacts>& ranks) {
  LaunchFinding finding{"GPUs", "none", ""};
  std::map<std::string, int> users;
  const LaunchFacts* without = nullptr;
  for (const auto& rank : ranks) {
    if (rank.gpu.empty()) {
      without = &rank;
    } else if (++users[rank.host + " " + rank.gpu] > 1 && finding.advice.empty()) {
      finding.advice =
          fmt::format("rank {} shares {} on {} with another rank: one rank per GPU", rank.rank, rank.gpu, rank.host);
    }
  }
  if (users.empty()) return finding;
  finding.fact = fmt::format("{}, the first {}", users.size(), ranks.front().gpu);
  if (without != nullptr)
    finding.advice =
        fmt::format("rank {} on {} has none: --gpus-per-node, or fewer ranks", without->rank, without->host);
  return finding;
}

std::string bytes_or(std::int64_t bytes, const char* otherwise) {
  return bytes < 0 ? otherwise : format_bytes(static_cast<double>(bytes));
}

std::vector<LaunchFinding> node_findings(const std::vector<LaunchFacts>& ranks) {
  const auto least = [&](std::int64_t LaunchFacts::*size) {
    return std::ranges::min_element(ranks, {}, [&](const auto& rank) {
      return static_cast<std::uint64_t>(rank.*size);  // -1, unknown or without a limit, is the largest
    });
  };
  std::vector<LaunchFinding> findings;
  const auto memory = least(&LaunchFacts::memory);
  findings.push_back({"memory", fmt::format("{} per node", bytes_or(memory->memory, "unknown")), ""});
  const auto shared = least(&LaunchFacts::shared);
  LaunchFinding shm{"/dev/shm", bytes_or(shared->shared, "not there"), ""};
  constexpr std::int64_t kEnough = std::int64_t{1} << 28;
  if (shared->shared < kEnough)
    shm.advice = fmt::format("too small on {}: MPI and NCCL need some 32 MiB per rank there (container: --shm-size=1g)",
                             shared->host);
  findings.push_back(std::move(shm));
  const auto locked = least(&LaunchFacts::memlock);
  LaunchFinding memlock{"locked memory", bytes_or(locked->memlock, "without a limit"), ""};
  if (locked->has_fabric && locked->memlock >= 0)
    memlock.advice = fmt::format(
        "limited on {}, which has a fast network: ask the site for ulimit -l unlimited in jobs", locked->host);
  findings.push_back(std::move(memlock));
  return findings;
}

std::vector<LaunchFinding> folder_findings(const SharedFolderFacts& folder, const LaunchCheckOptions& options,
                                           int nodes) {
  const auto path = std::filesystem::absolute(options.run_folder).lexically_normal().string();
  std::vector<LaunchFinding> findings;
  LaunchFinding place{"runs", fmt::format("{} ({})", path, folder.type.empty() ? "unknown file system" : folder.type),
                      ""};
  if (folder.blind >= 0) {
    place.advice = fmt::format(
        "rank {} does not see what rank 0 writes there: set OUT_DIR to storage that all nodes share", folder.blind);
  } else if (folder.type == "tmpfs" || folder.type == "ramfs") {
    place.advice = "this is memory: checkpoints would be lost with the node. Set OUT_DIR to storage";
  }
  findings.push_back(std::move(place));
  if (folder.blind < 0 && nodes > 1)
    findings.push_back(
        {"seen after",
         fmt::format("{:.0f} ms a new file, {:.0f} ms a renamed one", folder.appears * 1e3, folder.replaced * 1e3),
         ""});
  LaunchFinding speed{
      "fsync, stat",
      fmt::format("{:.1f} ms after 1 MiB, {:.0f} us", folder.sync_seconds * 1e3, folder.stat_seconds * 1e6), ""};
  if (folder.stat_seconds > 5e-3)
    speed.advice = "names are slow there: keep data on the nodes' own disks (STAGE), and runs elsewhere";
  findings.push_back(std::move(speed));
  if (folder.blind >= 0) return findings;
  LaunchFinding locks{"flock",
                      folder.lock_error.empty()
                          ? (folder.locks ? "keeps other ranks out" : "does not keep other ranks out")
                          : folder.lock_error,
                      ""};
  if (!folder.lock_error.empty() || !folder.locks)
    locks.advice = "export HDF5_USE_FILE_LOCKING=FALSE; the programs themselves need no locks";
  findings.push_back(std::move(locks));
  return findings;
}

/// Waits until a signal arrives on a rank, and a third of one more. Collective. \return on rank 0 what arrived where
LaunchFinding await_signal(ProcessGroup& world, double seconds, const Logger& log, bool& everywhere) {
  const StopSignal stop;
  world.barrier();  // a rank that has no handler yet would be ended by the signal
  log.info(fmt::format("ready: waiting {:.0f} s for a signal", seconds));
  const auto start = std::chrono::steady_clock::now();
  const auto waited = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  double arrived = -1;
  for (bool more = true; more;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const bool any = world.all_reduce(stop.received() != 0 ? 1 : 0, Reduce::max) > 0;
    if (any && arrived < 0) arrived = waited();
    // Rank 0 decides by its clock for all.
    const double done = world.rank() == 0 && (arrived >= 0 ? waited() - arrived > 0.3 : waited() > seconds) ? 1 : 0;
    more = world.all_reduce(done, Reduce::max) == 0;
  }
  const int number = stop.received();
  const int got = static_cast<int>(world.all_reduce(number != 0 ? 1 : 0, Reduce::sum));
  everywhere = got == world.size();
  LaunchFinding finding{"signal", "", ""};
  if (got == 0) {
    finding.fact = fmt::format("none within {:.0f} s", seconds);
    finding.advice = "no signal reached a rank: the run would not save before the time limit; set --time-limit";
  } else {
    finding.fact = fmt::format("{} after {:.1f} s on {} of {} ranks", number, arrived, got, world.size());
  }
  return finding;
}

std::string table_of(const std::vector<LaunchFinding>& findings) {
  std::string text;
  for (const auto& finding : findings) {
    text += fmt::format("{:<14} {}\n", finding.subject, finding.fact);
    if (!finding.advice.empty()) text += fmt::format("{:<14} -> {}\n", "", finding.advice);
  }
  return text;
}

}  // namespace

std::vector<LaunchFinding> judge_launch(const std::vector<LaunchFacts>& ranks, bool by_open_mpi) {
  std::vector<LaunchFinding> findings{ranks_finding(ranks), cores_finding(ranks, by_open_mpi), gpu_finding(ranks)};
  for (auto& finding : node_findings(ranks)) findings.push_back(std::move(finding));
  return findings;
}

LaunchCheckResult run_launch_check(ProcessGroup& world, Bf16FactSource& source, const LaunchCheckOptions& options,
                                   const Logger& log, nlohmann::json& report) {
  const auto [node, leaders, number] = NodeGroups(world);
  auto device = source.identify(world, *node, options.device);
  device.node = number;
  const int nodes = static_cast<int>(world.all_reduce(number, Reduce::max)) + 1;

  std::vector<LaunchFacts> ranks;
  for (const auto& text : world.gather(json_text(nlohmann::json(own_facts(device))), 0))
    ranks.push_back(parse_json(text, "a rank's facts").get<LaunchFacts>());
  std::vector<LaunchFinding> findings{{"MPI", fmt::format("{} {}", options.mpi_library, loaded_library("libmpi")), ""}};
  if (world.rank() == 0) {
    for (auto& finding : judge_launch(ranks, launcher_kind() == LauncherKind::open_mpi))
      findings.push_back(std::move(finding));
  }
  // One rank per node is enough where there are several nodes.
  if (nodes == 1 || node->rank() == 0) {
    const auto folder = examine_shared_folder(nodes == 1 ? world : *leaders, options.run_folder);
    for (auto& finding : folder_findings(folder, options, nodes)) findings.push_back(std::move(finding));
  }
  world.barrier();
  LaunchCheckResult result;
  bool everywhere = false;
  if (options.await_signal_seconds > 0)
    findings.push_back(await_signal(world, options.await_signal_seconds, log, everywhere));
  const bool is_well = std::ranges::all_of(findings, [](const auto& finding) { return finding.advice.empty(); });
  const bool well_on_first = world.all_reduce(world.rank() == 0 && is_well ? 1 : 0, Reduce::max) > 0;
  result.exit_code = everywhere ? ExitCode::stopped_early : well_on_first ? ExitCode::ok : ExitCode::answer_no;
  if (world.rank() != 0) return result;
  result.table = table_of(findings);
  report = {{"mpi", options.mpi_library}, {"mpi_file", loaded_library("libmpi")}, {"nodes", nodes}, {"ranks", ranks}};
  for (const auto& finding : findings)
    report["findings"].push_back({{"subject", finding.subject}, {"fact", finding.fact}, {"advice", finding.advice}});
  return result;
}

}  // namespace fsdp
