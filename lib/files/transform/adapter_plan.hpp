#pragma once
// Plans how an adapter directory, as peft writes it, acts on a base model: which matrices it changes and where its
// tensors are in the file. The programs that compute with an adapter (fsdp-eval, fsdp-finetune) and the one that merges
// it (fsdp-ckpt-convert) share this plan.
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/models/config/adapter_config.hpp"

namespace fsdp {

/// A module of the base model with a weight, such as model.layers.0.self_attn.q_proj.
struct BaseModule {
  std::string name;
  bool can_have_adapter = false;
  bool is_in_block = false;
  std::string other_type = {};  ///< the type of its weight if that is no floating-point type, else empty
};

/// The modules of one of our models: the matrices of its blocks can have adapters.
std::vector<BaseModule> base_modules(const ModelConfig& config);

/// The adapter of one matrix: numbers of its tensors in the file.
struct AdapterParts {
  std::optional<std::size_t> a, b, magnitude;
};

struct AdapterPlan {
  LoraConfig lora;             ///< its targets are the modules in `parts`
  std::filesystem::path file;  ///< adapter_model.safetensors, or adapter_model.bin when that is absent
  std::shared_ptr<const Source> source;
  std::map<std::string, AdapterParts> parts;  ///< by module; a and b are set, with DoRA also the magnitude
  std::vector<std::string> remarks;           ///< parts of the directory that have no effect, for the user
};

/// Opens the directory as peft 0.21 does: a module has an adapter when target_modules names it and the file has tensors
/// for it. A run of fsdp-finetune with adapters, or a checkpoint of the run, is an adapter, too. The caller must check
/// the shapes, since it knows those of the base. \throws FormatError naming a field that is not supported, a tensor
/// that belongs to no module of the base, or a module that cannot have an adapter; what open_source() throws
AdapterPlan plan_adapter(const std::filesystem::path& directory, const std::vector<BaseModule>& base);

}  // namespace fsdp
