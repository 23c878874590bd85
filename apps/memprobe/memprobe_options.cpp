#include "apps/memprobe/memprobe_options.hpp"
#include "apps/common/objective_arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "apps/common/app_main.hpp"
#include "apps/common/remedies.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/hub/snapshot_store.hpp"

namespace fsdp {
namespace {

// The help section of options that fsdp-finetune does not have.
constexpr const char* kOwnGroup = "Prediction and search";

constexpr std::array kGoals{NamedValue<bool>{"fastest", false}, NamedValue<bool>{"largest", true}};
constexpr const char* kSearches = "batch, model, ranks";

void add_speed_options(OptionTable& t, MemprobeOptions& o) {
  t.add("rates", o.rates_file,
        "output of fsdp-bf16check --json from such nodes; its measured speeds and bandwidths replace the GPU's data "
        "sheet, or a measurement of this processor",
        {.path = PathKind::file})
      ->type_name("FILE");
  t.add("rates-threads", o.check_threads, "threads per rank of the check that wrote --rates, on CPUs",
        {.range = {.from = 1, .to = 4096}});
  t.add("link-gb-per-s", o.link_gb_per_s,
        "GB/s that a rank sends to other ranks of its node; default: the GPU's NVLink or PCIe",
        {.default_text = "", .range = {.above = 0}, .unit = "GB/s"});
  t.add("network-gb-per-s", o.network_gb_per_s, "GB/s that a node sends to another; default: 50 with GPUs, 10 without",
        {.default_text = "", .range = {.above = 0}, .unit = "GB/s"});
  t.add("cores", o.cores, "cores of a node, for ranks on CPUs; default: this machine's",
        {.default_text = "", .range = {.from = 1, .to = 4096}});
  t.add("tokens", o.run_tokens,
        "length of the run in tokens (1e9), for its hours and GPU hours; default: --max-steps, if given",
        {.default_text = "", .range = {.above = 0}});
  t.add("price", o.price, "price of an hour of a GPU, on CPUs of a node, for the price of the run",
        {.default_text = "", .range = {.above = 0}});
  t.add_choice("plan-for", kGoals, o.plan_for_largest,
               "best result of a search: fastest (most predicted tokens/s) or largest (most sequences at once)");
}

void take_search(MemprobeOptions& o, const std::string& text) {
  o.search_model = text == "model";
  o.search_ranks = text == "ranks";
  if (o.search_model || o.search_ranks || text == "batch" || text.empty()) {
    o.search = true;
    return;
  }
  try {
    o.search = CLI::detail::to_flag_value(text) > 0;  // in earlier versions a flag
  } catch (const std::exception&) {
    std::string meant;
    if (text == "fastest" || text == "largest") meant = "; that is a choice of --plan-for";
    if (text.find_first_of("./") != std::string::npos) meant = "; a file to write is named by --plan";
    throw UsageError("--search is '" + text + "', choose from " + kSearches + meant);
  }
}

/// Checks the folder of --plan before a search that may take minutes. \throws IoError
void check_plan_folder(const MemprobeArguments& a) {
  const auto folder = std::filesystem::path(a.plan_file).parent_path();
  std::error_code error;
  if (!folder.empty() && !a.trial && !std::filesystem::is_directory(folder, error))
    throw IoError("--plan " + a.plan_file + ": there is no folder " + folder.string());
}

/// "; built in are the sizes of ..." with the models of the family that the name is of.
std::string nearest_known_model(const std::string& name) {
  const auto is_family = [](const std::string& known, const std::string& wanted) {
    const auto part = known.substr(known.find('/') + 1);
    return ascii_lower(wanted).find(ascii_lower(part.substr(0, part.find_first_of("-23")))) != std::string::npos;
  };
  std::vector<std::string> names;
  for (const auto& known : known_model_names())
    if (is_family(known, name)) names.push_back(known);
  if (names.empty()) return "; fsdp-memprobe --help-all names the models whose sizes are built in";
  return fmt::format("; built in are the sizes of {}", fmt::join(names, ", "));
}

}  // namespace

void normalize_search(OptionTable& t, MemprobeArguments& a) {
  auto* search = t.get_option("--search");
  auto* none = t.get_option("--no-search");
  if (search->count() > 0 && a.options.search && !a.options.search_model && !a.options.search_ranks)
    t.set("--search", "batch");
  if (none->count() == 0) return;
  const auto& order = t.parse_order();
  const auto last = std::find_if(order.rbegin(), order.rend(), [&](const auto* o) { return o == search || o == none; });
  if (last != order.rend() && *last == search) {
    none->clear();
    return;
  }
  search->clear();
  a.options.search = !a.no_search;  // --no-search=false turns the search on
  a.options.search_model = a.options.search_ranks = false;
}

void add_memprobe_options(OptionTable& t, MemprobeArguments& a) {
  auto& o = a.options;
  t.section(kOwnGroup);
  t.add("ranks", o.ranks, "ranks of the job; default: this job's",
        {.default_text = "",
         .range = {.from = 1, .to = 65536},
         .instead_of_list = "a table over several sizes is --nodes 1,2,8 --ranks-per-node 4"});
  t.add("ranks-per-node", o.ranks_per_node, "ranks on each node; default: all on one node",
        {.default_text = "", .range = {.from = 1, .to = 65536}});
  t.add("nodes", o.nodes, "number of whole nodes, in place of --ranks; several give a table (1,2,8)",
        {.range = {.from = 1, .to = 65536}})
      ->delimiter(',');
  t.add("rank", o.rank, "rank that is simulated", {.range = {.from = 0, .to = 65535}});
  t.add("gpu", o.gpu,
        "GPU of each rank: a100-40g, a100-80g, h100, h200, v100-16g, v100-32g, l40s, ... or its memory (79GiB); "
        "default: this machine's, else CPUs",
        {.suggestions = "a100-40g, a100-80g, h100, h200, b200, gh200-96g, v100-16g, v100-32g, l40s, l4, a40, a10, a30, "
                        "t4, rtx-3090, rtx-4090"});
  t.add("memory", o.memory, "without a GPU: memory that a rank may use; default: its share of this machine");
  t.add("cuda-context", o.cuda_context, "bytes of the CUDA context; default: the usual value for the GPU");
  t.add("nccl-buffers", o.nccl_buffers, "bytes of NCCL's buffers; default: the usual value");
  t.add_parsed(
       "search", [&](const std::string& text) { take_search(o, text); },
       "for each combination of --sharding, --precision and --activation-checkpointing find the largest batch "
       "per device without allocation retries (batch; also without a value), the most layers at the given "
       "batch size (model), or the fewest ranks, also with recomputation, an 8-bit optimizer and offload (ranks)",
       {.choices = kSearches})
      ->expected(0, 1);
  t.add("--no-search", a.no_search, "cancel an earlier --search, or one in a --config file");
  t.add("max-batch", o.max_batch, "largest batch that a search tries; default: 65536",
        {.default_text = "", .range = {.from = 1, .to = 1000000}});
  t.add("margin", o.margin,
        "memory that a search leaves free: bytes or percent (400MiB, 0.5%); default: what --calibration's runs took "
        "beyond their predictions, else 0.5%");
  t.add("calibration", o.calibrations,
        "memory.json or speed.json of earlier runs, a run's directory, or a directory of runs, which correct the "
        "predictions of memory and time",
        {.path = PathKind::file});
  add_speed_options(t, o);
  t.add("measure", o.measure, "run real training steps on this job's ranks and compare them with the prediction");
  t.add("alone", o.alone, "with --measure: simulate all ranks of --ranks but rank --rank, which this process is");
  t.add("plan,write-plan", a.plan_file, "file for the best combination, as a config file for fsdp-finetune --config",
        {.path = PathKind::file});
  t.add("plot", o.plot_file, "file for a picture of memory over a step, .svg", {.path = PathKind::file});
  t.add_flag("--trial", a.trial)->group("")->configurable(false);
  a.job.compared.emplace();
  add_finetune_options(t, a.job);
  auto* model = t.get_option("--model");
  model->description(fmt::format("{}; without files the sizes of these are built in, for planning: {}",
                                 model->get_description(), fmt::join(known_model_names(), ", ")));
  t.get_option("--sharding")
      ->description(t.get_option("--sharding")->get_description() + "; a list with commas, or all");
}

void normalize_memprobe_options(OptionTable& t, MemprobeArguments& a) {
  auto& o = a.options;
  normalize_finetune_options(t, a.job);
  check_objective_options(a.job.options);
  if ((o.search_model || o.search_ranks) && !a.plan_file.empty() && !a.trial)
    throw UsageError("--plan writes a batch size down: it goes with --search batch");
  check_plan_folder(a);
  o.shardings = a.job.compared->shardings;
  o.precisions = a.job.compared->precisions;
  o.checkpointings = a.job.compared->checkpointings;
  if (t.get_option("--nodes")->count() > 0 && t.get_option("--ranks")->count() > 0 && !o.alone) {
    throw UsageError("--nodes and --ranks contradict each other: give one of them");
  }
  if (o.search_ranks && !o.nodes.empty())
    throw UsageError(
        "--search ranks finds the number of nodes itself: leave --nodes out (--ranks N is the most to try)");
  if (o.alone) o.nodes.clear();
  if (!o.nodes.empty() && o.ranks_per_node == 0)
    throw UsageError("--nodes needs --ranks-per-node: how many ranks a node has, such as --ranks-per-node 4");
  if (a.trial) {
    a.plan_file.clear();
    o.plot_file.clear();
  }
  check_plot_file(o.plot_file);
  if (o.price > 0 && o.run_tokens == 0 && a.job.options.max_steps <= 0)
    throw UsageError("--price needs the length of the run: give --tokens, such as --tokens 1e9, or --max-steps");
  o.precision_is_open = t.get_option("--precision")->count() == 0 && t.get_option("--param-dtype")->count() == 0 &&
                        t.get_option("--tf32")->count() == 0;
  if (o.alone && !o.measure) throw UsageError("--alone goes with --measure");
  auto& model = a.job.options.model;
  if (model.model != "mingpt") {
    // config.json suffices for the sizes, so the weights are not fetched.
    try {
      model.directory =
          find_snapshot(model.model, RepoType::model, hub_settings(process_environment()), " --include config.json")
              .string();
    } catch (const MissingInput& missing) {
      o.known_model = find_known_model(model.model);
      if (!o.known_model) throw MissingInput(told(missing) + nearest_known_model(model.model));
    }
  }
  o.train = a.job.options;
}

void write_plan(OptionTable& t, const MemprobeArguments& a, const MemprobeChoice& choice) {
  t.set("--sharding", std::string(to_string(choice.sharding)));
  t.set("--precision", std::string(float_type_name(choice.precision)));
  t.set("--activation-checkpointing", activation_checkpointing_name(choice.checkpoint_every));
  t.set("--batch-size", std::to_string(choice.batch_size));
  for (const char* name : {"--quiet", "--json"}) t.get_option(name)->clear();  // not options of the job
  for (auto* option : t.get_options([](const CLI::Option* o) { return o->get_group() == kOwnGroup; })) option->clear();
  const int nodes = (choice.ranks + choice.ranks_per_node - 1) / choice.ranks_per_node;
  const int on_node = std::min(choice.ranks, choice.ranks_per_node);
  const auto host_gib =
      static_cast<std::int64_t>(1.2 * static_cast<double>(choice.host_bytes) * on_node / 1073741824.0) + 1;
  const auto& options = a.job.options;
  const auto per_round = choice.batch_size * choice.ranks;
  auto text = fmt::format("# Written by fsdp-memprobe {}: {}\n# fsdp-finetune --config {}\n#\n", FSDP_VERSION,
                          choice.summary, a.plan_file) +
              scheduler_requests({.nodes = nodes,
                                  .ranks_per_node = on_node,
                                  .gpus_per_node = choice.gpu.empty() ? 0 : on_node,
                                  .memory_gib_per_node = host_gib});
  if (options.total_batch_size > 0) {
    text += fmt::format("# accumulation: {} per step = {} x {} x {}\n",
                        format_count_of(options.total_batch_size, "sequence"), format_count_of(choice.ranks, "rank"),
                        choice.batch_size,
                        format_count_of(options.total_batch_size / per_round, "micro-batch", "micro-batches"));
  }
  write_output(a.plan_file, text + t.config_to_str(false, false));
}

}  // namespace fsdp
