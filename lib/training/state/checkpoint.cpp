#include "lib/training/state/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/model/model_source.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/transform/model_tensors.hpp"
#include "lib/checkpoints/transform/tracked_source.hpp"
#include "lib/models/config/family.hpp"

namespace fsdp {
namespace {

/// A Llama or Falcon whose embedding is stored as its head alone.
constexpr std::array<std::string_view, 2> kMarksOfTied{"model.norm.weight", "transformer.ln_f.weight"};
constexpr double kMostSteps = 9007199254740992.0;  // 2^53: every whole number up to here is a double

template <typename T>
double as_double(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return static_cast<double>(value);
}

/// A directory with the name of a checkpoint of ours must be whole.
bool is_ours_without_manifest(const std::filesystem::path& path) {
  std::error_code error;
  const auto name = path.filename().string();
  return std::filesystem::is_directory(path, error) && name.starts_with("step-") && name.size() == 13 &&
         std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The newest checkpoint in RUN/previous-N of the highest N that has one; empty: none
std::filesystem::path newest_previous_run(const std::filesystem::path& run) {
  std::filesystem::path newest;
  std::error_code error;
  for (int number = 1;; ++number) {
    const auto folder = run / fmt::format("previous-{}", number);
    if (!std::filesystem::exists(folder, error)) return newest;
    if (const auto found = checkpoints_of_run(folder / "checkpoints"); !found.empty()) newest = found.front();
  }
}

/// The other runs of the folder that have checkpoints, for a message, and what to do with them.
std::pair<std::string, Remedy> runs_beside(const std::filesystem::path& run) {
  constexpr std::size_t kShown = 20;
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run.parent_path(), error)) {
    if (!checkpoints_of_run(entry.path() / "checkpoints").empty()) names.push_back(entry.path().filename().string());
  }
  const auto out = run.parent_path().string();
  if (names.empty()) return {out + " holds no run that has any", Remedy::folder_of_runs};
  std::sort(names.begin(), names.end());
  const auto more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : std::string();
  names.resize(std::min(kShown, names.size()));
  return {fmt::format("runs in {} that have some: {}{}", out, fmt::join(names, ", "), more), Remedy::one_of_runs};
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& path, const std::filesystem::path& config) : path_(path) {
  std::error_code error;
  is_ours_ = std::filesystem::exists(path / "run.json", error);
  if (is_ours_) run_ = read_run_manifest(path);
  source_ = std::make_unique<TrackedSource>(open_model_source(path, config));
  for (std::size_t i = 0; i < source_->tensors().size(); ++i)
    tensors_.emplace(without_wrappers(source_->tensors()[i].name), i);
  for (std::size_t i = 0; i < source_->values().size(); ++i)
    values_.emplace(without_wrappers(source_->values()[i].name), i);
  find_model();
  if (is_ours_) return;
  find_run();
  find_progress();
}

Checkpoint::~Checkpoint() = default;

const Source& Checkpoint::source() const { return *source_; }

Ignored Checkpoint::ignored(ProcessGroup& ranks) const {
  auto names = source_->unread(ranks);
  // run.json is read apart from the tensors, and the optimizer's state is for restarts alone, which say what they take.
  if (is_ours_)
    std::erase_if(names, [](const auto& name) { return name.starts_with("run.") || name.starts_with("optim."); });
  Ignored ignored;
  ignored.add(path_.string(), names);
  return ignored;
}

std::vector<std::string> Checkpoint::prefixes_of(std::span<const std::string_view> marks) const {
  std::vector<std::string> prefixes;
  for (const auto& [name, index] : tensors_) {
    for (const auto mark : marks) {
      if (!name.ends_with(mark)) continue;
      const auto prefix = name.substr(0, name.size() - mark.size());
      if (prefix.empty() || prefix.back() == '.') prefixes.push_back(prefix);
    }
  }
  return prefixes;
}

void Checkpoint::find_model() {
  if (is_local_state(*source_)) {
    throw FormatError(path_.string() +
                      ": holds FSDP1 local state (flat parameters without names and shapes): make a full .pt of it "
                      "with fsdp-ckpt-convert first");
  }
  if (has_adapters_only()) {
    model_prefix_ = "model.";
    return;
  }
  auto prefixes = prefixes_of(model_marks());
  if (prefixes.empty()) prefixes = prefixes_of(kMarksOfTied);
  if (prefixes.empty()) {
    const bool gpt2 = tensors_.contains("wte.weight");
    throw FormatError(
        fmt::format("{}: holds neither '{}' nor '{}', so no model that can be trained here (minGPT, or Llama with "
                    "Hugging Face's names){}",
                    path_.string(), model_marks()[0], model_marks()[1], gpt2 ? "; it looks like a GPT-2" : ""),
        gpt2 ? Remedy::transposed : Remedy::none);
  }
  constexpr std::array<std::string_view, 4> containers{"model.", "model_state.", "model_state_dict.", "state_dict."};
  for (const auto usual : {containers[0], containers[1], containers[2], containers[3], std::string_view()}) {
    if (std::find(prefixes.begin(), prefixes.end(), usual) == prefixes.end()) continue;
    model_prefix_ = usual;
    return;
  }
  if (prefixes.size() > 1) {
    throw FormatError(fmt::format("{}: holds several models, below '{}'", path_.string(), fmt::join(prefixes, "', '")),
                      Remedy::convert_one);
  }
  model_prefix_ = module_prefix_ = prefixes.front();
  for (const auto container : containers)
    if (model_prefix_.starts_with(container)) module_prefix_ = model_prefix_.substr(container.size());
}

void Checkpoint::find_run() {
  const auto json = run_in_values(*source_);
  if (json.is_null()) return;
  if (is_ours_without_manifest(path_)) {
    throw FormatError(path_.string() +
                      ": its run.json is missing: without that a checkpoint of fsdp-finetune is not whole");
  }
  run_ = run_manifest_from_json(json, path_.string());
}

std::optional<std::int64_t> Checkpoint::count(const std::string& name) const {
  const auto found = number(name);
  if (!found) return std::nullopt;
  if (!(*found >= 0 && *found <= kMostSteps) || *found != std::floor(*found)) {
    throw FormatError(fmt::format("{}: '{}' is {}, a number of steps was expected", path_.string(), name, *found));
  }
  return static_cast<std::int64_t>(*found);
}

void Checkpoint::find_progress() {
  // The last three are torchtitan's, Hugging Face's Trainer's and Composer's.
  for (const char* name : {"step", "global_step", "global_steps", "iter_num", "iteration", "train_state.step",
                           "trainer_state.global_step", "state.timestamp.Timestamp.batch"}) {
    const auto found = count(name);
    if (!found) continue;
    step_.emplace(name, *found);
    break;
  }
  if (const auto last = count("epoch_number")) epochs_done_ = *last + 1;
}

std::optional<std::int64_t> Checkpoint::tokens_seen() const {
  for (const char* name :
       {"train_state.ntokens_seen", "trainer_state.num_input_tokens_seen", "state.timestamp.Timestamp.token"}) {
    const auto found = number(name);
    if (found && *found > 0 && *found <= kMostSteps) return static_cast<std::int64_t>(*found);
  }
  return std::nullopt;
}

std::optional<double> Checkpoint::learning_rate() const {
  constexpr std::string_view kGroups = "param_groups.";
  std::set<double> first, present;
  for (const auto& [name, index] : values_) {
    const auto at = name.find(kGroups);
    if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) continue;
    if (name.ends_with(".initial_lr")) first.insert(number(name).value_or(0));
    if (name.ends_with(".lr")) present.insert(number(name).value_or(0));
  }
  const auto& rates = first.empty() ? present : first;
  return rates.size() == 1 && *rates.begin() > 0 ? std::optional(*rates.begin()) : std::nullopt;
}

bool Checkpoint::has_adapters_only() const {
  return run_ && run_->data.is_object() && run_->data.contains("weights_hash");
}

std::optional<std::size_t> Checkpoint::parameter(const std::string& name) const { return tensor(model_prefix_ + name); }

std::vector<std::string> Checkpoint::model_names() const {
  std::vector<std::string> names;
  for (auto it = tensors_.lower_bound(model_prefix_); it != tensors_.end(); ++it) {
    if (!it->first.starts_with(model_prefix_)) break;
    names.push_back(it->first.substr(model_prefix_.size()));
  }
  return names;
}

std::optional<std::size_t> Checkpoint::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return std::nullopt;
  return found->second;
}

std::optional<double> Checkpoint::number(const std::string& name) const {
  if (const auto found = values_.find(name); found != values_.end()) {
    const auto loaded = source_->value(found->second);
    if (const auto* integer = loaded.value->integer()) return static_cast<double>(*integer);
    if (const auto* real = loaded.value->real()) return *real;
    return std::nullopt;
  }
  const auto index = tensor(name);
  if (!index) return std::nullopt;
  const auto& scalar = source_->tensors()[*index];
  if (num_elements(scalar.shape) != 1) return std::nullopt;
  std::array<std::byte, 16> data{};
  source_->read(*index, 0, 1, std::span(data).first(dtype_size_bytes(scalar.dtype)), nullptr);
  switch (scalar.dtype) {
    case DType::f32:
      return as_double<float>(data.data());
    case DType::f64:
      return as_double<double>(data.data());
    case DType::i64:
      return as_double<std::int64_t>(data.data());
    case DType::i32:
      return as_double<std::int32_t>(data.data());
    default:
      return std::nullopt;
  }
}

nlohmann::json Checkpoint::list(const std::string& name) const {
  if (const auto found = values_.find(name); found != values_.end()) {
    auto whole = value_as_json(*source_, found->second);
    return whole.is_array() ? whole : nlohmann::json::array();
  }
  auto items = nlohmann::json::array();
  for (;;) {
    const auto found = values_.find(fmt::format("{}.{}", name, items.size()));
    if (found == values_.end()) return items;
    items.push_back(value_as_json(*source_, found->second));
  }
}

std::optional<std::int64_t> Checkpoint::argument(const std::vector<std::string>& names) const {
  nlohmann::json whole;  // `args` as one value
  if (const auto found = values_.find("args"); found != values_.end()) whole = value_as_json(*source_, found->second);
  for (const auto& name : names) {
    if (whole.is_object() && whole.contains(name) && whole[name].is_number_integer())
      return whole[name].get<std::int64_t>();
    const auto found = values_.find("args." + name);
    if (found == values_.end()) continue;
    const auto loaded = source_->value(found->second);
    if (const auto* integer = loaded.value->integer()) return *integer;
  }
  return std::nullopt;
}

std::vector<std::filesystem::path> checkpoint_candidates(const std::string& text,
                                                         const std::filesystem::path& checkpoints) {
  std::error_code error;
  const bool is_word = text == "latest" || (text == "best" && !std::filesystem::exists(text, error));
  std::filesystem::path given = is_word ? checkpoints / text : std::filesystem::path(text);
  std::vector<std::filesystem::path> candidates;
  if (const auto folder = folder_of_newest(given); !folder.empty()) {
    for (const auto& path : checkpoints_of_run(folder))
      candidates.push_back(std::filesystem::weakly_canonical(path, error));
    given = folder / "latest";
  } else {
    given = checkpoint_in_run(given);  // of a trainer
  }
  const auto resolved = std::filesystem::weakly_canonical(given, error);
  if (candidates.empty() && std::filesystem::exists(resolved, error)) candidates.push_back(resolved);
  if (candidates.empty() && text == "latest") {
    const auto earlier = newest_previous_run(checkpoints.parent_path());
    if (!earlier.empty()) {
      throw MissingInput(
          fmt::format("{}: no such checkpoint; an earlier run of this name was moved aside", given.string()),
          {Remedy::go_on_from, earlier.string()});
    }
  }
  const bool is_run = std::filesystem::exists(std::filesystem::path(text) / "metrics.jsonl", error);
  if (is_run && (candidates.empty() || candidates.front() == std::filesystem::weakly_canonical(text, error))) {
    throw MissingInput(text + ": is the folder of a run without checkpoints: it has saved none; start it anew, or " +
                       "give the checkpoint of another one");
  }
  if (candidates.empty() && is_word) {
    const auto [runs, remedy] = runs_beside(checkpoints.parent_path());
    throw MissingInput(given.string() + ": no such checkpoint; " + runs, remedy);
  }
  if (candidates.empty()) {
    throw MissingInput(given.string() +
                       ": no such checkpoint; give a checkpoint directory, or a .pt or safetensors file");
  }
  return candidates;
}

bool names_latest(const std::string& text) { return !folder_of_newest(text).empty(); }

std::shared_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& path, bool ours_only,
                                                  const std::filesystem::path& config) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw MissingInput(path.string() + ": no such checkpoint");
  const bool is_ours = std::filesystem::exists(path / "run.json", error);
  if (ours_only && !is_ours)
    throw FormatError(path.string() + ": holds no run.json, so it is no checkpoint of this program");
  try {
    return std::make_shared<const Checkpoint>(path, config);
  } catch (const FormatError& problem) {
    if (is_ours || !std::filesystem::is_directory(path, error)) throw;
    const std::string what = problem.what();
    if (what.find("run.json") != std::string::npos) throw;
    throw FormatError(path.string() + ": holds no run.json of this program, and " + what, problem.advice());
  }
}

}  // namespace fsdp
