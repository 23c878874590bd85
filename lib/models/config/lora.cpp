#include "lib/models/config/lora.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMostRank = 1 << 14;

/// Returns "model.layers.0.self_attn.q_proj" for "model.layers.0.self_attn.q_proj.weight".
std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }
std::string last_parts(const std::string& module, int n) {
  auto dot = module.size();
  for (; n > 0 && dot != std::string::npos; --n) dot = module.rfind('.', dot - 1);
  return module.substr(dot + 1);
}

void validate(const LoraConfig& lora) {
  if (lora.rank > kMostRank)
    throw UsageError(fmt::format("--lora-rank is {}, it can be at most {}", lora.rank, kMostRank));
  if (!(lora.alpha > 0) || !std::isfinite(lora.alpha))
    throw UsageError(fmt::format("--lora-alpha is {}, it must be greater than 0", lora.alpha));
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    throw UsageError(fmt::format("--lora-dropout is {}, it must be at least 0 and less than 1", lora.dropout));
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

/// Matches like peft: a target is a module's whole name or its end after a dot, so in GPT-2 "c_proj" matches both
/// modules of this name in a block, and "mlp.c_proj" matches one.
bool is_target(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

/// \return a flag for each parameter of the model's table. \throws UsageError when a target matches no matrix
std::vector<bool> chosen_matrices(const ModelConfig& config, const LoraConfig& lora) {
  const auto table = parameter_table(config);
  std::vector<bool> chosen(table.size(), false);
  bool any = false;
  for (const auto& target : lora.targets) {
    const bool all = target == "all" || target == "all-linear";
    bool found = target.empty();
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (!table[i].is_matrix_of_block() || !(all || is_target(module_of(table[i].name), target))) continue;
      chosen[i] = found = any = true;
    }
    if (!found)
      throw UsageError(
          fmt::format("--lora-targets has '{}', choose from all, {}", target, fmt::join(lora_modules(config), ", ")));
  }
  if (!any) throw UsageError("--lora-targets names no module");
  return chosen;
}

}  // namespace

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

std::vector<std::string> lora_modules(const ModelConfig& config) {
  std::vector<std::string> modules;
  for (const auto& spec : parameter_table(config)) {
    if (spec.block == 0 && spec.is_matrix_of_block()) add_once(modules, last_parts(module_of(spec.name), 1));
  }
  return modules;
}

std::vector<std::string> lora_targets(const ModelConfig& config, const LoraConfig& lora) {
  const auto chosen = chosen_matrices(config, lora);
  const auto table = parameter_table(config);
  const auto means_no_other = [&](const std::string& target) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].is_matrix_of_block() && !chosen[i] && is_target(module_of(table[i].name), target)) return false;
    }
    return true;
  };
  std::vector<std::string> targets;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!chosen[i]) continue;
    const auto module = module_of(table[i].name);
    const auto names = {last_parts(module, 1), last_parts(module, 2), module};
    add_once(targets, *std::find_if(names.begin(), names.end(), means_no_other));
  }
  return targets;
}

std::vector<ParameterSpec> adapter_table(const ModelConfig& config, const LoraConfig& lora) {
  std::vector<ParameterSpec> table;
  if (!lora.enabled()) return table;
  validate(lora);
  const auto chosen = chosen_matrices(config, lora);
  const auto base = parameter_table(config);
  for (std::size_t i = 0; i < base.size(); ++i) {
    if (!chosen[i]) continue;
    const auto& spec = base[i];
    const auto module = module_of(spec.name);
    const auto out = spec.shape[0], in = spec.shape[1];
    // Initialised as in peft: kaiming_uniform with a = sqrt(5), which is U(+-1 / sqrt(in)), for A, and zero for B.
    table.push_back({module + ".lora_A.weight",
                     {lora.rank, in},
                     Init::uniform,
                     1.0 / std::sqrt(static_cast<double>(in)),
                     true,
                     spec.block});
    table.push_back({module + ".lora_B.weight", {out, lora.rank}, Init::zeros, 0.0, true, spec.block});
    if (lora.dora) table.push_back({module + ".lora_magnitude_vector", {out}, Init::row_norms, 0.0, false, spec.block});
  }
  for (auto& spec : table) {
    spec.adapter = true;
    spec.storage = Storage::float32;
  }
  return table;
}

}  // namespace fsdp
