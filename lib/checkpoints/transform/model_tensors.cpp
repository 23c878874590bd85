#include "lib/checkpoints/transform/model_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/score_head.hpp"

namespace fsdp {
namespace {

/// The name of every parameter, and those without storage of their own.
std::set<std::string> known_names(const ModelConfig& config) {
  std::set<std::string> known;
  for (auto& spec : parameter_table(config)) known.insert(std::move(spec.name));
  for (const auto& [name, original] : tied_names(config)) known.insert(name);
  if (config.score_is_new) known.insert(std::string(facts_of(config).head));
  return known;
}

/// Tells the names that a model itself has from those under which a source stores them.
class ModelNames {
 public:
  ModelNames(const Source& source, const ModelConfig& config) : known_(known_names(config)), part_(model_part(source)) {
    std::set<std::string> marks{parameter_table(config).front().name}, prefixes;
    for (const auto& [name, original] : tied_names(config)) marks.insert(name);
    for (std::size_t i = 0; i < source.tensors().size(); ++i) {
      if (!part_.contains[i]) continue;
      const auto name = without_wrappers(stored_name(source.tensors()[i].name));
      for (const auto& mark : marks) {
        if (!name.ends_with(mark)) continue;
        const auto prefix = name.substr(0, name.size() - mark.size());
        if (prefix.empty() || prefix.back() == '.') prefixes.insert(prefix);
      }
    }
    if (prefixes.empty() || prefixes.contains("")) return;
    if (prefixes.size() > 1)
      throw FormatError(fmt::format("{}: holds several models, below '{}', of which one must be chosen",
                                    source.info().named_file().string(), fmt::join(prefixes, "', '")),
                        {Remedy::include, *prefixes.begin() + "*"});
    prefix_ = *prefixes.begin();
  }

  const ModelPart& part() const { return part_; }
  /// The name after the container of the model's tensors.
  std::string stored_name(const std::string& name) const {
    return name.starts_with(part_.prefix) ? name.substr(part_.prefix.size()) : name;
  }
  std::string of(const std::string& stored) const {
    auto name = without_wrappers(stored);
    if (!prefix_.empty() && name.starts_with(prefix_)) name.erase(0, prefix_.size());
    if (!known_.contains(name) && known_.contains("model." + name)) name.insert(0, "model.");
    return name;
  }

 private:
  std::set<std::string> known_;
  ModelPart part_;
  std::string prefix_;  ///< of a module around the model
};

class NamedSource final : public DecoratedSource {
 public:
  NamedSource(std::shared_ptr<const Source> source, const ModelNames& names) : DecoratedSource(std::move(source)) {
    const auto& part = names.part();
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (part.contains[i]) {
        const auto name = names.of(names.stored_name(tensor.name));
        const bool nested = tensor.path.size() > 1;
        tensor.path = nested ? StatePath{tensor.path.front(), name} : StatePath{name};
        tensor.name = (nested ? part.prefix : "") + name;
      } else {  // the optimizer's, in which the name of a parameter may be any element
        for (auto& element : tensor.path)
          if (auto* text = std::get_if<std::string>(&element)) *text = without_wrappers(*text);
        tensor.name = without_wrappers(tensor.name);
      }
      changes_ = changes_ || tensor.name != inner_->tensors()[i].name;
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
    check_unique_names(*this);
  }

  bool changes() const { return changes_; }

 private:
  bool changes_ = false;
};

/// The help for a name of another program; nothing for any other name.
Advice advice_for(std::string_view name) {
  if (name.starts_with("tok_embeddings.") || name.find(".attention.wq.") != std::string_view::npos)
    return Remedy::names_of_meta;
  if (name.starts_with("blk.") || name.starts_with("token_embd.") || name.starts_with("output_norm."))
    return Remedy::names_of_gguf;
  return {};
}

void check_stored(const StoredNf4& stored, const ParameterSpec& spec, const QuantizeConfig& quantize,
                  const std::filesystem::path& path) {
  if (!spec.is_matrix_of_block())
    throw FormatError(path.string() + ": '" + spec.name + "' is in 4 bits, which only matrices of blocks can be");
  if (stored.shape != spec.shape)
    throw FormatError(fmt::format("{}: '{}' has shape [{}], the model needs [{}]", path.string(), spec.name,
                                  fmt::join(stored.shape, ", "), fmt::join(spec.shape, ", ")));
  if (stored.nested_absmax.has_value() != quantize.double_quant)
    throw FormatError(fmt::format("{}: '{}' is stored {} double quantisation, config.json says otherwise",
                                  path.string(), spec.name, stored.nested_absmax ? "with" : "without"));
}

}  // namespace

bool is_known_buffer(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

std::string without_wrappers(const std::string& name) {
  static constexpr std::array<std::string_view, 5> kWrappers{"module", "_fsdp_wrapped_module", "_fpw_module",
                                                             "_checkpoint_wrapped_module", "_orig_mod"};
  std::string result;
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    const auto part = std::string_view(name).substr(begin, end - begin);
    if (std::find(kWrappers.begin(), kWrappers.end(), part) == kWrappers.end()) {
      if (!result.empty()) result += '.';
      result += part;
    }
    begin = end + 1;
  }
  return result;
}

std::shared_ptr<const Source> with_model_names(std::shared_ptr<const Source> source, const ModelConfig& config) {
  auto named = std::make_shared<const NamedSource>(source, ModelNames(*source, config));
  return named->changes() ? named : std::move(source);
}

void refuse_adapters_inside(const Source& source) {
  for (const auto& tensor : source.tensors()) {
    if (tensor.name.find(".base_layer.") == std::string::npos &&
        tensor.name.find(".modules_to_save.") == std::string::npos)
      continue;
    throw FormatError(fmt::format("{}: '{}' is of peft's modules: these are the weights of a model and an adapter "
                                  "inside it, not yet one model. "
                                  "Merge them where they were trained (merge_and_unload() of peft), or save the "
                                  "adapter (save_pretrained() of "
                                  "the PeftModel) and give it beside its base",
                                  source.info().named_file().string(), tensor.name),
                      Remedy::adapter_beside_base);
  }
}

void check_shape(const SourceTensor& tensor, const Shape& shape, const std::filesystem::path& path) {
  if (tensor.shape == shape) return;
  const bool transposed = tensor.shape.size() == 2 && shape == Shape{tensor.shape[1], tensor.shape[0]};
  throw FormatError(fmt::format("{}: '{}' has shape [{}], the model needs [{}]{}", path.string(), tensor.name,
                                fmt::join(tensor.shape, ", "), fmt::join(shape, ", "),
                                transposed ? ": transposed, as GPT-2's are" : ""),
                    transposed ? Remedy::transposed : Remedy::none);
}

ModelTensors find_model_tensors(const Source& source, const std::filesystem::path& path, const ModelConfig& config,
                                const QuantizeConfig& quantize) {
  ModelTensors found;
  const auto stored = quantize.enabled() ? find_stored_nf4(source) : std::map<std::string, StoredNf4>();
  const auto known = known_names(config);
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const auto& name = source.tensors()[i].name;
    if (!known.contains(name) && !is_known_buffer(name) && !is_part_of(stored, name))
      throw FormatError(
          fmt::format("{}: tensor '{}' has no place in the model that config.json describes", path.string(), name),
          advice_for(name));
    numbers.emplace(name, i);
  }
  const auto table = parameter_table(config);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto& spec = table[i];
    auto tensor = numbers.find(spec.name);
    if (tensor == numbers.end()) tensor = numbers.find(tied_name_of(config, spec.name));
    if (tensor == numbers.end() && config.score_is_new && spec.name == kScoreWeight) {
      found.missing.insert(i);
      found.numbers.push_back(0);
      continue;
    }
    if (tensor == numbers.end())
      throw FormatError(path.string() + ": parameter '" + spec.name + "' of the model in config.json is missing");
    if (const auto nf4 = stored.find(spec.name); nf4 != stored.end()) {
      check_stored(nf4->second, spec, quantize, path);
      found.stored.emplace(i, nf4->second);
    } else {
      check_shape(source.tensors()[tensor->second], spec.shape, path);
      if (!stored.empty() && spec.is_matrix_of_block())
        throw FormatError(fmt::format("{}: '{}' is not in 4 bits as other matrices are; all or none can be read",
                                      path.string(), spec.name));
    }
    found.numbers.push_back(tensor->second);
  }
  for (const auto& [alias, name] : tied_names(config)) {
    const auto copy = numbers.find(alias);
    const auto original = static_cast<std::size_t>(
        std::find_if(table.begin(), table.end(), [&name = name](const auto& spec) { return spec.name == name; }) -
        table.begin());
    if (copy == numbers.end() || copy->second == found.numbers[original]) continue;
    check_shape(source.tensors()[copy->second], table[original].shape, path);
    found.copies.emplace(original, copy->second);
  }
  return found;
}

}  // namespace fsdp
