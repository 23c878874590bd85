// Options that belong to one job of a run, not to the run: what a restart does not take over.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "apps/common/finetune_options.hpp"

namespace fsdp {
namespace {

/// What a checkpoint answers for, or what says where the run is, what to go on from and what to print.
const std::set<std::string_view> kOfTheRun{"model",
                                           "num-layers",
                                           "num-heads",
                                           "embed-size",
                                           "ffn-hidden-size",
                                           "vocab-size",
                                           "total-batch-size",
                                           "gradient-accumulation-steps",
                                           "adapter",
                                           "lora-rank",
                                           "lora-alpha",
                                           "lora-dropout",
                                           "lora-targets",
                                           "rslora",
                                           "dora",
                                           "quantize",
                                           "double-quant",
                                           "out-dir",
                                           "run-name",
                                           "restart-checkpoint-file",
                                           "json",
                                           "quiet",
                                           "dry-run",
                                           "allow-other-tokenizer"};

/// \param saved  what the checkpoint keeps
bool is_of_job(const CLI::Option& option, const nlohmann::json& saved) {
  if (!option.get_configurable() || option.get_lnames().empty() || option.get_group().empty()) return false;
  const auto& name = option.get_lnames().front();
  return !kOfTheRun.contains(name) && !saved.contains(name);
}

}  // namespace

std::map<std::string, std::string> collect_options_of_job(const CLI::App& app) {
  const auto saved = collect_saved_options(app);
  std::map<std::string, std::string> found;
  for (const auto* option : app.get_options()) {
    if (option->count() == 0 || !is_of_job(*option, saved)) continue;
    const auto text = fmt::format("{}", fmt::join(option->reduced_results(), " "));
    if (text != option->get_default_str()) found[option->get_lnames().front()] = text;
  }
  return found;
}

std::vector<std::string> options_left_behind(const CLI::App& app, const RestartPoint& restart) {
  std::vector<std::string> words;
  const auto of_job = restart.manifest.data.find("options_of_job");
  if (!restart.knows_run || of_job == restart.manifest.data.end() || !of_job->is_object()) return words;
  for (const auto& [name, value] : of_job->items()) {
    const auto* option = app.get_option_no_throw("--" + name);
    if (option == nullptr || option->count() > 0 || !value.is_string()) continue;
    const auto text = value.get<std::string>();
    const bool is_flag = option->get_expected_max() == 0;
    const bool is_bare = is_flag && text == "true";
    words.push_back(is_bare ? "--" + name : fmt::format("--{}{}{}", name, is_flag ? "=" : " ", text));
  }
  return words;
}

}  // namespace fsdp
