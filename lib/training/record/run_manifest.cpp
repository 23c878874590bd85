#include "lib/training/record/run_manifest.hpp"

#include <cmath>
#include <span>
#include <utility>
#include <vector>
#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_json.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {
namespace {

void check_file(const std::filesystem::path& directory, const std::string& name, const FileInfo& expected) {
  if (std::filesystem::path(name).filename() != name) {
    throw FormatError((directory / "run.json").string() + ": file name '" + name + "' leaves the checkpoint");
  }
  const auto path = directory / name;
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw FormatError(path.string() + ": is missing, but the checkpoint was saved with it");
  if (size != expected.size_bytes) {
    throw FormatError(path.string() + ": is " + std::to_string(size) + " bytes long, it was saved with " +
                      std::to_string(expected.size_bytes) + ": the file was cut or changed");
  }
  if (name == ".metadata" && describe_file(path).crc32 != expected.crc32) {
    throw FormatError(path.string() + ": its checksum differs from the saved one: the file was changed");
  }
}

/// Files without a checksum of their own reach this too.
void require_sense(const RunManifest& manifest, const std::string& source) {
  const auto& state = manifest.state;
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const auto is_count = [](std::int64_t value) { return value >= 0 && value <= kMost; };
  if (!is_count(state.step) || !is_count(state.samples) || !is_count(state.optimizer_steps) ||
      !is_count(state.good_steps) || !is_count(state.fisher_batches) || !(state.loss_scale > 0) ||
      !std::isfinite(state.loss_scale)) {
    throw FormatError(source + ": a step, a number of samples or a loss scale is not possible");
  }
  const auto& validation = state.validation;
  if (validation.step < -1 || validation.step > kMost || validation.best_step < -1 || validation.best_step > kMost ||
      !is_count(validation.count) || !is_count(validation.without_improvement)) {
    throw FormatError(source + ": a step or a number of validations is not possible");
  }
  for (const auto& [name, value] : manifest.options.items()) {
    if (!value.is_string()) throw FormatError(source + ": option '" + name + "' is not text");
  }
}

/// NaN is left out: JSON has none.
nlohmann::json validation_to_json(const ValidationState& validation) {
  nlohmann::json json{{"step", validation.step},
                      {"set", validation.set},
                      {"count", validation.count},
                      {"without_improvement", validation.without_improvement}};
  if (validation.metric != ValidationState().metric) json["metric"] = validation.metric;
  if (validation.best_step >= 0) {
    json["best_step"] = validation.best_step;
    json["best_value"] = validation.best_value;
  }
  if (!std::isnan(validation.patience_value)) json["patience_value"] = validation.patience_value;
  return json;
}

ValidationState validation_from_json(const nlohmann::json& json, const std::string& source) {
  using config_detail::field;
  // Before there were other metrics than losses, they had other names.
  const auto name = [&](const char* now, const char* before) { return json.contains(before) ? before : now; };
  ValidationState validation;
  validation.step = field<std::int64_t>(json, "step", source);
  validation.set = json.at("set").get<std::string>();
  validation.metric = json.value("metric", validation.metric);
  validation.count = field<std::int64_t>(json, name("count", "tokens"), source);
  validation.without_improvement = field<std::int64_t>(json, "without_improvement", source);
  if (json.contains("best_step")) {
    validation.best_step = field<std::int64_t>(json, "best_step", source);
    validation.best_value = field<double>(json, name("best_value", "best_loss"), source);
  }
  if (const auto* key = name("patience_value", "lowest_loss"); json.contains(key))
    validation.patience_value = field<double>(json, key, source);
  return validation;
}

}  // namespace

nlohmann::json run_manifest_to_json(const RunManifest& manifest) {
  nlohmann::json state{{"step", manifest.state.step},
                       {"samples", manifest.state.samples},
                       {"optimizer_steps", manifest.state.optimizer_steps},
                       {"loss_scale", manifest.state.loss_scale},
                       {"good_steps", manifest.state.good_steps}};
  if (manifest.state.fisher_batches > 0) state["fisher_batches"] = manifest.state.fisher_batches;
  if (manifest.state.validation_due) state["validation_due"] = true;
  if (manifest.state.validation.step >= 0) state["validation"] = validation_to_json(manifest.state.validation);
  nlohmann::json json{{"model", model_config_to_json(manifest.config)},
                      {"state", state},
                      {"options", manifest.options},
                      {"data", manifest.data},
                      {"world_size", manifest.world_size}};
  if (!manifest.products.empty()) json["products"] = manifest.products;
  if (manifest.passing) json["only_as_best"] = true;
  if (manifest.weights_alone) json["weights_alone"] = true;
  return json;
}

RunManifest run_manifest_from_json(const nlohmann::json& json, const std::string& source) {
  try {
    RunManifest manifest;
    manifest.config = model_config_from_json(json.at("model"), source);
    const auto& state = json.at("state");
    using config_detail::field;
    manifest.state = {field<std::int64_t>(state, "step", source),
                      field<std::int64_t>(state, "samples", source),
                      field<std::int64_t>(state, "optimizer_steps", source),
                      field<double>(state, "loss_scale", source),
                      field<std::int64_t>(state, "good_steps", source),
                      state.contains("fisher_batches") ? field<std::int64_t>(state, "fisher_batches", source) : 0,
                      ValidationState(),
                      state.value("validation_due", false)};
    if (const auto found = state.find("validation"); found != state.end())
      manifest.state.validation = validation_from_json(*found, source);
    manifest.passing = json.value("only_as_best", false);
    manifest.weights_alone = json.value("weights_alone", false);
    manifest.options = json.value("options", nlohmann::json::object());
    manifest.data = json.value("data", nlohmann::json::object());
    const auto world_size = field<std::int64_t>(json, "world_size", source);
    constexpr std::int64_t kMostRanks = 1 << 24;
    if (world_size < 1 || world_size > kMostRanks) {
      throw FormatError(source + ": field 'world_size' is " + std::to_string(world_size) + ", which is not possible");
    }
    manifest.world_size = static_cast<int>(world_size);
    manifest.products = json.value("products", std::string());
    require_sense(manifest, source);
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(source + ": does not say where a run stood: " + error.what());
  }
}

FileInfo describe_file(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  FileInfo info{file.size_bytes(), 0};
  std::vector<std::byte> buffer(1 << 20);
  for (std::uint64_t done = 0; done < info.size_bytes;) {
    const auto n = std::min<std::uint64_t>(buffer.size(), info.size_bytes - done);
    file.read_at(done, std::span(buffer.data(), n));
    info.crc32 = crc32(info.crc32, std::span(buffer.data(), n));
    done += n;
  }
  return info;
}

void write_run_manifest(const std::filesystem::path& directory, const RunManifest& manifest) {
  auto json = run_manifest_to_json(manifest);
  json["format"] = "fsdp-run";
  json["format_version"] = 1;
  json["program_version"] = FSDP_VERSION;
  json["files"] = nlohmann::json::object();
  for (const auto& [name, info] : manifest.files)
    json["files"][name] = {{"size_bytes", info.size_bytes}, {"crc32", info.crc32}};
  replace_file(directory / "run.json", run_json_text(std::move(json)));
}

RunManifest read_run_manifest(const std::filesystem::path& directory) {
  const auto path = directory / "run.json";
  const auto json = read_run_json(path);
  RunManifest manifest;
  try {
    if (json.at("format_version") != 1) {
      throw FormatError(path.string() + ": format_version " + json_text(json.at("format_version")) +
                        " is newer than this program");
    }
    manifest = run_manifest_from_json(json, path.string());
    for (const auto& [name, info] : json.at("files").items()) {
      using config_detail::field;
      manifest.files[name] = {static_cast<std::uint64_t>(field<std::int64_t>(info, "size_bytes", path.string())),
                              static_cast<std::uint32_t>(field<std::int64_t>(info, "crc32", path.string()))};
    }
  } catch (const nlohmann::json::exception& error) {
    throw FormatError(path.string() + ": not a valid run.json: " + error.what());
  }
  for (const auto& [name, info] : manifest.files) check_file(directory, name, info);
  return manifest;
}

bool measure_alike(const ValidationState& a, const ValidationState& b) {
  return a.metric == b.metric && a.set == b.set && a.count == b.count;
}

ValidationVerdict judge_validation(ValidationState& state, const ValidationRules& rules, const DecidingValue& found) {
  ValidationVerdict verdict;
  if (!rules.decide()) return verdict;
  verdict.began_anew =
      state.step >= 0 && (state.metric != found.metric || state.set != found.set || state.count != found.count);
  if (verdict.began_anew) state = {};
  const bool again = state.step == found.step;
  state.step = found.step;
  state.metric = found.metric;
  state.set = found.set;
  state.count = found.count;
  const bool finite = std::isfinite(found.value);
  // The improvement of this value over another one; negative if it is worse.
  const auto gain = [&](double than) { return rules.higher_is_better ? found.value - than : than - found.value; };
  if (rules.keeps_best && found.may_be_best && finite && (state.best_step < 0 || gain(state.best_value) > 0)) {
    state.best_value = found.value;
    state.best_step = found.step;
    verdict.is_best = true;
  }
  if (rules.patience <= 0) {
    // Patience that is switched on later counts from then on.
    state.patience_value = ValidationState().patience_value;
    state.without_improvement = 0;
  } else if (finite && (std::isnan(state.patience_value) || gain(state.patience_value) > rules.min_delta)) {
    state.patience_value = found.value;
    state.without_improvement = 0;
  } else if (!again) {
    ++state.without_improvement;
  }
  return verdict;
}

bool out_of_patience(const ValidationState& state, const ValidationRules& rules) {
  return rules.patience > 0 && state.without_improvement >= rules.patience;
}

}  // namespace fsdp
