// Source: huggingface_hub serialization/_base.py (split_state_dict_into_shards_factory), transformers
// modeling_utils.py.
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/target/value_json.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {

namespace detail {

void add_safetensors_file(Layout& layout, const std::filesystem::path& name, const Source& source,
                          std::span<const std::size_t> tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> items;
  for (const auto number : tensors) {
    const auto& tensor = source.tensors()[number];
    items.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .other = tensor.other});
  }
  auto plan = plan_safetensors(items, metadata);
  const auto file = layout.files.size();
  layout.files.push_back({name, plan.size_bytes});
  layout.literals.push_back({file, 0, std::move(plan.head)});
  const auto first_segment = layout.segments.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto count = element_count(items[i].shape);
    layout.segments.push_back({.file = file, .offset_bytes = plan.offsets[i], .tensor = tensors[i], .count = count});
  }
  std::stable_sort(iterator_at(layout.segments, first_segment), layout.segments.end(),
                   [](const auto& a, const auto& b) { return a.offset_bytes < b.offset_bytes; });
}

std::map<std::string, std::string> carried_metadata(const Source& source) {
  auto metadata = source.info().metadata;
  std::erase_if(metadata, [](const auto& item) { return item.first.starts_with("DCP_"); });
  metadata["format"] = "pt";
  return metadata;
}

void add_known_file(Layout& layout, const std::filesystem::path& name, std::string bytes) {
  layout.files.push_back({name, bytes.size()});
  layout.literals.push_back({layout.files.size() - 1, 0, std::move(bytes)});
}

bool are_equal(const Source& source, std::size_t first, std::size_t second) {
  constexpr std::uint64_t buffer_bytes = 1u << 20;
  const auto &a = source.tensors()[first], &b = source.tensors()[second];
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const auto element = dtype_size_bytes(a.dtype);
  const auto count = element_count(a.shape);
  const bool whole = source.prefers_whole(first) || source.prefers_whole(second);
  const auto step = std::max<std::uint64_t>(whole ? count : std::min(count, buffer_bytes / element), 1);
  std::vector<std::byte> left(step * element), right(step * element);
  for (std::uint64_t done = 0; done < count; done += step) {
    const auto now = std::min(step, count - done);
    const auto left_part = std::span(left).first(now * element), right_part = std::span(right).first(now * element);
    source.read(first, done, now, left_part, nullptr);
    source.read(second, done, now, right_part, nullptr);
    if (!std::equal(left_part.begin(), left_part.end(), right_part.begin())) return false;
  }
  return true;
}

}  // namespace detail

namespace {

constexpr std::array kConfigNames{"config.json", "generation_config.json"};
constexpr std::array kTokenizerNames{"tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "vocab.txt",
                                     "tokenizer.model",
                                     "spiece.model",
                                     "chat_template.jinja",
                                     "chat_template.json"};
constexpr const char* kMoreTemplates = "additional_chat_templates";
constexpr std::uint64_t kCarriedLimitBytes = 256u << 20;

struct Tie {
  std::size_t dropped, kept;
};

/// The tied output layer and embedding, when config.json ties them and the source has both.
std::optional<Tie> find_tie(const Source& source, const std::string& config, const std::string& file) {
  if (config.empty()) return std::nullopt;
  const auto json = parse_json_or_discard(config, file);
  if (!json.is_object()) throw FormatError(file + ": is no JSON object, as a model's configuration must be");
  if (!ties_word_embeddings(json)) return std::nullopt;
  const auto& tensors = source.tensors();
  const auto find = [&](std::string_view name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.name == name; });
  };
  const auto head = find(kTiedHead);
  if (head == tensors.end()) return std::nullopt;
  for (const auto name : token_embeddings()) {
    const auto embedding = find(name);
    if (embedding == tensors.end()) continue;
    return Tie{to_index(head - tensors.begin()), to_index(embedding - tensors.begin())};
  }
  return std::nullopt;
}

/// Splits the tensors in order: a file takes tensors until it is full.
std::vector<std::vector<std::size_t>> split(const Source& source, const std::vector<std::size_t>& numbers,
                                            std::uint64_t max_shard_bytes) {
  std::vector<std::vector<std::size_t>> shards(1);
  std::uint64_t filled = 0;
  for (const auto number : numbers) {
    const auto& tensor = source.tensors()[number];
    const auto bytes = element_count(tensor.shape) * dtype_size_bytes(tensor.dtype);
    if (!shards.back().empty() && (filled > max_shard_bytes || bytes > max_shard_bytes - filled)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(number);
    filled += bytes;
  }
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name.data();
}

}  // namespace

Layout SafetensorsTarget::plan(const Source& source) {
  Layout layout;
  std::vector<std::size_t> all(source.tensors().size());
  std::iota(all.begin(), all.end(), 0);
  detail::add_safetensors_file(layout, name_, source, all, detail::carried_metadata(source));
  if (auto values = values_to_json(source); !values.empty()) {
    auto beside = name_;
    beside.replace_extension(".json");
    if (beside == name_)
      throw RequestError(name_.string() + ": the python values go to a file of this name; give the " +
                         "output the suffix .safetensors");
    detail::add_known_file(layout, beside, std::move(values));
  }
  return layout;
}

bool ties_word_embeddings(const nlohmann::json& config) {
  if (const auto tied = config.find("tie_word_embeddings"); tied != config.end()) return *tied == true;
  const auto type = config.value("model_type", nlohmann::json());
  if (!type.is_string()) return false;
  const auto& name = type.get_ref<const std::string&>();
  const auto* facts = find_facts(name);
  return facts != nullptr ? facts->tied : name.starts_with("gemma");
}

std::map<std::string, std::string> HfTarget::carried_files() const {
  auto files = options_.files;
  const auto carry = [&](const std::filesystem::path& directory, std::span<const char* const> names) {
    for (const auto* name : names) {
      const auto path = directory / name;
      if (files.contains(name) || !std::filesystem::is_regular_file(path)) continue;
      files[name] = read_text_file(path, kCarriedLimitBytes);
    }
  };
  const auto carry_templates = [&](const std::filesystem::path& directory) {
    if (options_.files.contains("chat_template.jinja")) return;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(directory / kMoreTemplates, ignored)) {
      if (entry.path().extension() != ".jinja" || !entry.is_regular_file()) continue;
      files.try_emplace(kMoreTemplates + ("/" + entry.path().filename().string()),
                        read_text_file(entry.path(), kCarriedLimitBytes));
    }
  };
  for (const auto& directory : options_.carry_from) {
    carry(directory, kConfigNames);
    if (options_.tokenizer_from) continue;
    carry(directory, kTokenizerNames);
    carry_templates(directory);
  }
  if (options_.tokenizer_from && !options_.tokenizer_from->empty()) {
    carry(*options_.tokenizer_from, kTokenizerNames);
    carry_templates(*options_.tokenizer_from);
  }
  return files;
}

Layout HfTarget::plan(const Source& source) {
  if (!source.values().empty()) {
    throw RequestError(
        "\"" + source.values().front().name + "\" is no tensor: a Hugging Face directory holds a model only",
        Remedy::model_only);
  }
  const auto files = carried_files();
  const auto config = files.find("config.json");
  std::optional<Tie> tie;
  if (config != files.end()) tie = find_tie(source, config->second, "config.json");
  if (tie && !detail::are_equal(source, tie->dropped, tie->kept)) {
    throw RequestError("config.json says tie_word_embeddings, but \"" + source.tensors()[tie->dropped].name +
                           "\" differs from \"" + source.tensors()[tie->kept].name + "\"",
                       Remedy::exclude_one);
  }
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    if (!tie || i != tie->dropped) numbers.push_back(i);
  }
  if (numbers.empty()) throw RequestError("there is no tensor to write");

  Layout layout;
  const auto shards = split(source, numbers, options_.max_shard_bytes);
  auto weight_map = nlohmann::json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto name = shard_name(i, shards.size());
    detail::add_safetensors_file(layout, name, source, shards[i], detail::carried_metadata(source));
    for (const auto number : shards[i]) {
      const auto& tensor = source.tensors()[number];
      weight_map[tensor.name] = name;
      total += element_count(tensor.shape) * dtype_size_bytes(tensor.dtype);
    }
  }
  if (shards.size() > 1) {
    const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    detail::add_known_file(layout, "model.safetensors.index.json", json_text(index, 2) + "\n");
  }
  for (const auto& [name, bytes] : files) detail::add_known_file(layout, name, bytes);
  return layout;
}

}  // namespace fsdp
