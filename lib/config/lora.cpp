#include "lib/config/lora.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kMostRank = 1 << 14;

/// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }
std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

void validate(const ModelConfig& config, const LoraConfig& lora) {
  if (config.architecture != Architecture::llama)
    throw UsageError("--lora-rank: adapters are for models that are loaded, and of these for Llama's kin");
  if (lora.rank > kMostRank)
    throw UsageError(fmt::format("--lora-rank is {}, it can be at most {}", lora.rank, kMostRank));
  if (!(lora.alpha > 0) || !std::isfinite(lora.alpha))
    throw UsageError(fmt::format("--lora-alpha is {}, it must be greater than 0", lora.alpha));
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    throw UsageError(fmt::format("--lora-dropout is {}, it must be at least 0 and less than 1", lora.dropout));
}

}  // namespace

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

std::vector<std::string> lora_modules(const ModelConfig& config) {
  std::vector<std::string> modules;
  for (const auto& spec : parameter_table(config)) {
    if (spec.block == 0 && spec.shape.size() == 2) modules.push_back(last_part(module_of(spec.name)));
  }
  return modules;
}

std::vector<std::string> lora_targets(const ModelConfig& config, const LoraConfig& lora) {
  const auto modules = lora_modules(config);
  const auto has = [&](std::string_view name) {
    return std::find(lora.targets.begin(), lora.targets.end(), name) != lora.targets.end();
  };
  const bool all = has("all") || has("all-linear");
  for (const auto& target : lora.targets) {
    if (target == "all" || target == "all-linear" || target.empty()) continue;
    if (std::find(modules.begin(), modules.end(), target) != modules.end()) continue;
    throw UsageError(fmt::format("--lora-targets has '{}', choose from all, {}", target, fmt::join(modules, ", ")));
  }
  std::vector<std::string> targets;
  std::copy_if(modules.begin(), modules.end(), std::back_inserter(targets),
               [&](const auto& module) { return all || has(module); });
  if (targets.empty()) throw UsageError("--lora-targets names no module");
  return targets;
}

std::vector<ParameterSpec> adapter_table(const ModelConfig& config, const LoraConfig& lora) {
  std::vector<ParameterSpec> table;
  if (!lora.enabled()) return table;
  validate(config, lora);
  const auto targets = lora_targets(config, lora);
  for (const auto& spec : parameter_table(config)) {
    if (spec.block < 0 || spec.shape.size() != 2) continue;
    const auto module = module_of(spec.name);
    if (std::find(targets.begin(), targets.end(), last_part(module)) == targets.end()) continue;
    const auto out = spec.shape[0], in = spec.shape[1];
    // peft's start: kaiming_uniform with a = sqrt(5) is U(+-1 / sqrt(in)), and B is zero.
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
