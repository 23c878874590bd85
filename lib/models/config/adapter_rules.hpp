#pragma once
// Which modules and parameters of a model an adapter changes, chosen by their names as peft 0.21 chooses. Free of
// LibTorch.
#include <memory>
#include <string>
#include <vector>

#include "lib/models/config/adapter_config.hpp"

namespace fsdp {

namespace detail {
class FullMatch;
}

/// The choices of a LoraConfig, with its patterns compiled. Modules are named as in the model that the adapter was made
/// for; "model.layers.0.self_attn.q_proj" is an example.
class LoraRules {
 public:
  /// \param where  owner of the choices, for messages
  /// \throws FormatError naming `where` and a pattern that cannot be read
  LoraRules(const LoraConfig& lora, std::string where);
  LoraRules(LoraRules&&) noexcept;
  ~LoraRules();

  /// Whether target_modules, exclude_modules, layers_to_transform and modules_to_save give the module an adapter.
  /// \param is_matrix_of_block  "all" and "all-linear" choose these
  bool is_target(const std::string& module, bool is_matrix_of_block) const;
  /// Whether modules_to_save names the module of a parameter, or a module around it.
  bool is_saved(const std::string& parameter) const;
  /// \return rank, alpha and scale by rank_pattern and alpha_pattern
  LoraModule module(const std::string& name) const;
  /// \return target_modules as a list of names; empty when it is a pattern or means all matrices
  const std::vector<std::string>& names() const { return names_; }

 private:
  bool is_excluded(const std::string& module) const;
  bool is_in_layers(const std::string& module) const;

  LoraConfig lora_;
  bool all_ = false;
  std::vector<std::string> names_;
  std::unique_ptr<detail::FullMatch> targets_, excluded_;  ///< null: lists of names
  std::vector<detail::FullMatch> ranks_, alphas_;          ///< of the patterns, in their order
};

}  // namespace fsdp
