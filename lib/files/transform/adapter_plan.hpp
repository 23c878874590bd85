#pragma once
// What of an adapter's folder, as peft writes it, acts beside a base, and where it is in the folder's file: decided
// here for whoever computes with it (fsdp-eval, fsdp-finetune) or merges it (fsdp-ckpt-convert).
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/models/config/lora.hpp"

namespace fsdp {

/// A module of the base that has a weight, such as model.layers.0.self_attn.q_proj.
struct BaseModule {
  std::string name;
  bool can_have_adapter = false;
  bool is_in_block = false;
};

/// Those of a model here: the matrices of its blocks can have adapters.
std::vector<BaseModule> base_modules(const ModelConfig& config);

/// Of one matrix's adapter: numbers of tensors in the file.
struct AdapterParts {
  std::optional<std::size_t> a, b, magnitude;
};

struct AdapterPlan {
  LoraConfig lora;             ///< targets: the modules in `parts`
  std::filesystem::path file;  ///< adapter_model.safetensors, or adapter_model.bin where that is absent
  std::shared_ptr<const Source> source;
  std::map<std::string, AdapterParts> parts;  ///< by module; a and b are there, with DoRA the magnitude too
  std::vector<std::string> remarks;           ///< what of the folder does not act, for the user
};

/// As peft 0.21 opens the folder: a module has an adapter where target_modules names it and the file has tensors for
/// it. Shapes are for the caller to check, who knows the base's.
/// \throws FormatError naming a field that is not built, a tensor that is no part of an adapter of one of the base's
///         modules, or a module that cannot have one; what open_source() throws
AdapterPlan plan_adapter(const std::filesystem::path& directory, const std::vector<BaseModule>& base);

}  // namespace fsdp
