#include "lib/files/transform/select_model.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace fsdp {
namespace {

constexpr std::array<std::string_view, 5> kContainers{"model", "model_state", "model_state_dict", "state_dict",
                                                      "module"};
constexpr std::array<std::string_view, 20> kOther{"optim",
                                                  "optimizer",
                                                  "optimizer_state",
                                                  "optimizer_state_dict",
                                                  "optim_state",
                                                  "optimizers",
                                                  "optimizer_states",
                                                  "lr_scheduler",
                                                  "lr_schedulers",
                                                  "scheduler",
                                                  "schedulers",
                                                  "scheduler_state",
                                                  "scheduler_state_dict",
                                                  "rng",
                                                  "rng_state",
                                                  "rng_states",
                                                  "dataloader",
                                                  "train_state",
                                                  "run",
                                                  "scaler"};

/// The first element of a nested path; null when there is no nesting.
const std::string* container_of(const StatePath& path) {
  return path.size() > 1 ? std::get_if<std::string>(&path.front()) : nullptr;
}

/// Module names of models that themselves begin with "model.".
bool is_own_name(std::string_view name) {
  return name.starts_with("model.layers.") || name.starts_with("model.embed_tokens.") ||
         name.starts_with("model.decoder.");
}

std::string_view first_part(std::string_view name) { return name.substr(0, name.find('.')); }

}  // namespace

ModelPart model_part(const Source& source) {
  const auto& tensors = source.tensors();
  ModelPart part;
  part.contains.assign(tensors.size(), false);
  for (const auto candidate : kContainers) {
    bool found = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto* container = container_of(tensors[i].path);
      part.contains[i] = container != nullptr && *container == candidate;
      found = found || part.contains[i];
    }
    if (!found) continue;
    part.prefix = std::string(candidate) + ".";
    return part;
  }
  bool own_names = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto first = first_part(tensors[i].name);
    part.contains[i] = std::find(kOther.begin(), kOther.end(), first) == kOther.end();
    own_names = own_names || (part.contains[i] && is_own_name(tensors[i].name));
  }
  if (own_names) return part;
  // Without nesting on record ("model.transformer.wte.weight" of a safetensors file) all names have to agree.
  for (const auto candidate : kContainers) {
    const auto prefix = std::string(candidate) + ".";
    bool any = false, all = true;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!part.contains[i]) continue;
      any = true;
      all = all && tensors[i].name.size() > prefix.size() && tensors[i].name.starts_with(prefix);
    }
    if (any && all) part.prefix = prefix;
  }
  return part;
}

void strip_prefix(const std::string& prefix, std::string& name, StatePath& path) {
  if (prefix.empty() || !name.starts_with(prefix)) return;
  name.erase(0, prefix.size());
  const auto* container = container_of(path);
  if (container != nullptr && *container + "." == prefix) {
    path.erase(path.begin());
  } else {
    path = {name};
  }
}

}  // namespace fsdp
