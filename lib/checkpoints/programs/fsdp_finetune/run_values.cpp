#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/trainers/trainer_source.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/formats/torch_blob.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/gguf/gguf_tokenizer.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxTokenizerFileBytes = 64u << 20;

/// run.json; null when there is none.
nlohmann::json manifest_of(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return nullptr;
  return parse_json_or_discard(read_text_file(file, kMaxTokenizerFileBytes), file.string());
}

/// "data" of run.json; null when there is none.
nlohmann::json data_of_manifest(const std::filesystem::path& file) {
  const auto run = manifest_of(file);
  return run.is_object() ? run.value("data", nlohmann::json()) : nlohmann::json();
}

/// The step of run.json; nothing when there is none.
std::optional<std::int64_t> step_of_manifest(const std::filesystem::path& file) {
  const auto run = manifest_of(file);
  const nlohmann::json::json_pointer place("/state/step");
  if (!run.is_object() || !run.contains(place) || !run[place].is_number_integer()) return std::nullopt;
  return run[place].get<std::int64_t>();
}

/// The step of a folder that CheckpointSaver has named: step-NNNNNNNN, or .step-NNNNNNNN.old of a step that was saved
/// again by a job that was killed between its two renames, when the first save is whole under this name.
std::optional<std::int64_t> step_of_checkpoint(const std::filesystem::path& path) {
  auto name = path.filename().string();
  std::error_code error;
  if (name.starts_with(".step-") && name.ends_with(".old")) {
    name = name.substr(1, name.size() - 5);
    if (std::filesystem::exists(path.parent_path() / name, error)) return std::nullopt;
  }
  std::int64_t step = 0;
  if (!name.starts_with("step-") || !std::filesystem::is_directory(path, error)) return std::nullopt;
  const auto [end, problem] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (problem != std::errc() || end != name.data() + name.size()) return std::nullopt;
  const bool is_ours = name == fmt::format("step-{:08d}", step) || std::filesystem::exists(path / "run.json", error);
  return is_ours ? std::optional(step) : std::nullopt;
}

bool is_linked_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_symlink(path, error) && std::filesystem::is_directory(path, error);
}

std::filesystem::path without_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::vector<std::filesystem::path> checkpoints_of_run(const std::filesystem::path& folder) {
  std::map<std::int64_t, std::filesystem::path, std::greater<>> steps;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (const auto step = step_of_checkpoint(entry->path())) steps.emplace(*step, entry->path());
  const auto latest = folder / "latest";
  const bool is_link = is_linked_folder(latest);
  if (!is_link)
    if (const auto step = step_of_manifest(latest / "run.json")) steps.emplace(*step, latest);
  std::vector<std::filesystem::path> newest_first;
  if (is_link) newest_first.push_back(latest);
  for (const auto& [step, path] : steps)
    if (!is_link || !std::filesystem::equivalent(path, latest, error)) newest_first.push_back(path);
  return newest_first;
}

std::filesystem::path folder_of_newest(const std::filesystem::path& given) {
  const auto path = without_slash(given);
  std::error_code error;
  if (std::filesystem::exists(path / "run.json", error) && path.filename() != "latest") return {};  // a checkpoint
  if (path.filename() == "latest") return path.has_parent_path() ? path.parent_path() : ".";
  if (std::filesystem::is_directory(path / "checkpoints", error)) return path / "checkpoints";
  return checkpoints_of_run(path).empty() ? std::filesystem::path() : path;
}

std::filesystem::path checkpoint_in_run(const std::filesystem::path& path) {
  std::error_code error;
  const bool is_latest = without_slash(path).filename() == "latest";
  const bool is_folder = std::filesystem::is_directory(path, error);
  if (!is_latest && (!is_folder || holds_checkpoint(path))) return path;
  if (const auto folder = folder_of_newest(path); !folder.empty()) {
    const auto all = checkpoints_of_run(folder);
    if (!all.empty()) return is_latest && all.front().filename() == "latest" ? path : all.front();
  }
  const auto newest = is_folder && !holds_checkpoint(path) ? newest_of_trainer(path) : std::filesystem::path();
  return newest.empty() ? path : newest;
}

std::string remark_of_newest(const std::filesystem::path& path) {
  return checkpoint_in_run(path) == newest_of_trainer(path) ? incomplete_in_trainer(path) : "";
}

nlohmann::json value_as_json(const Source& source, std::size_t value) {
  const auto loaded = source.value(value);
  const auto* arguments = loaded.value->object_of("argparse", "Namespace");
  return pickle_to_json(arguments != nullptr && arguments->state != nullptr ? *arguments->state : *loaded.value,
                        source.info().named_file().string());
}

nlohmann::json run_in_values(const Source& source) {
  constexpr std::size_t deepest = 4;
  // The "run" of another program may hold values that are not read.
  const auto may_be_ours = [](const SourceValue& value) { return value.name == "run" || value.name == "run.format"; };
  if (std::ranges::none_of(source.values(), may_be_ours)) return nullptr;
  nlohmann::json json;
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& path = source.values()[i].path;
    const auto* first = path.empty() ? nullptr : std::get_if<std::string>(&path.front());
    if (first == nullptr || *first != "run" || path.size() > deepest) continue;
    auto* place = &json;
    for (std::size_t depth = 1; depth < path.size(); ++depth) {
      const auto* key = std::get_if<std::string>(&path[depth]);
      if (key == nullptr || !(place->is_null() || place->is_object())) return nullptr;  // written by another program
      place = &(*place)[*key];
    }
    *place = value_as_json(source, i);
  }
  const auto format = json.is_object() ? json.find("format") : json.end();
  return format != json.end() && *format == "fsdp-run" ? json : nlohmann::json();
}

nlohmann::json adapters_of_run(const std::filesystem::path& checkpoint) {
  auto data = data_of_manifest(checkpoint / "run.json");
  return data.is_object() && data.contains("weights_hash") && data.contains("adapter") ? data : nlohmann::json();
}

nlohmann::json run_of_checkpoint(const std::filesystem::path& directory) { return manifest_of(directory / "run.json"); }

nlohmann::json run_data_of(const Source& checkpoint) {
  const auto& directory = checkpoint.info().directory;
  if (!directory.empty() && !checkpoint.model_config().is_null()) return data_of_manifest(directory / "run.json");
  const auto run = run_in_values(checkpoint);
  return run.is_object() ? run.value("data", nlohmann::json()) : nlohmann::json();
}

std::string text_of_run(const nlohmann::json& data, const std::string& key) {
  const auto found = data.is_object() ? data.find(key) : data.end();
  return data.is_object() && found != data.end() && found->is_string() ? found->get<std::string>() : "";
}

OwnTokenizer tokenizer_of(const std::filesystem::path& input, const nlohmann::json& run) {
  OwnTokenizer own;
  if (input.empty()) return own;
  const auto path = checkpoint_in_run(input);
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(path, error);
  if (has_tokenizer(path)) return {path.string(), ""};
  const auto data = run.is_null() ? data_of_manifest(path / "run.json") : run;
  // The run may have been moved, and another run may have its old place.
  const auto folder = std::filesystem::weakly_canonical(path, error).parent_path();
  const bool added = data.is_object() && data.value("added_tokens", nlohmann::json()) == true;
  const auto beside = (data.is_null() ? folder : folder.parent_path()) / "tokenizer";
  if (is_folder && (added || has_adapter(path)) && has_tokenizer(beside)) return {beside.string(), ""};
  const auto name = text_of_run(data, "tokenizer");
  (name.empty() || name == kBuiltInTokenizer || has_tokenizer(name) ? own.name : own.gone) = name;
  return own;
}

OwnTokenizer tokenizer_of(const std::filesystem::path& base, const nlohmann::json& run,
                          const std::filesystem::path& adapter) {
  auto own = tokenizer_of(adapter, nullptr);
  if (!own.name.empty() && own.name != kBuiltInTokenizer) return own;
  auto of_base = tokenizer_of(base, run);
  if (of_base.name.empty() && !own.name.empty()) return own;
  if (!own.gone.empty()) of_base.gone = own.gone;
  return of_base;
}

std::string chat_template_of_adapter(const std::filesystem::path& given) {
  const auto directory = checkpoint_in_run(given);
  auto text = text_of_run(data_of_manifest(directory / "run.json"), "chat_template");
  const auto file = directory / "chat_template.jinja";
  std::error_code error;
  if (text.empty() && std::filesystem::is_regular_file(file, error))
    text = read_text_file(file, kMaxTokenizerFileBytes);
  return text;
}

ExportTokenizer find_export_tokenizer(const std::string& name, std::int64_t vocab_size) {
  ExportTokenizer found;
  if (name.empty()) {
    found.missing = "none is known";
  } else if (name == kBuiltInTokenizer && vocab_size != 0 && vocab_size < gpt2_vocab_size) {
    found.missing = fmt::format("the run named gpt2, which has {} ids, the model has {}", gpt2_vocab_size, vocab_size);
  } else if (name == kBuiltInTokenizer) {
    found.files = gpt2_tokenizer_files();
  } else if (!has_tokenizer(name)) {
    found.missing = fmt::format("the run used that of {}, where there is none now", name);
  } else if (is_gguf_file(name)) {
    found.files = gguf_tokenizer_files(name);
  } else {
    found.directory = name;
  }
  return found;
}

}  // namespace fsdp
