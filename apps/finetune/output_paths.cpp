#include "apps/finetune/output_paths.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/target/output_directory.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

/// Names that a run keeps in its folder (docs/formats.md), besides hidden names and previous-N.
constexpr std::array kept_names{"checkpoints", "data",       "metrics.jsonl", "samples.jsonl", "job.json",
                                "memory.json", "speed.json", "loss.svg",      "loss.png",      "tokenizer"};

/// One output: its option, where it goes.
struct Output {
  const char* option;
  const fs::path& path;
  bool is_directory;
};

[[noreturn]] void refuse(const Output& output, const std::string& reason) {
  throw UsageError(fmt::format("{} {}: {}", output.option, output.path.string(), reason));
}

void check_run_directory(const Output& output, const fs::path& run_directory) {
  if (const auto way = path_below(run_directory, output.path)) {
    refuse(output, fmt::format("{} the run's folder {}: name a new folder, such as {}", *way == "." ? "is" : "holds",
                               run_directory.string(), (run_directory / "hf").string()));
  }
  const auto way = path_below(output.path, run_directory);
  if (!way) return;
  const auto first = way->begin()->string();
  if (first.starts_with(".") || first.starts_with("previous-") ||
      std::find(kept_names.begin(), kept_names.end(), first) != kept_names.end()) {
    refuse(output,
           fmt::format("the run keeps its own files in {}; choose another name", (run_directory / first).string()));
  }
}

void check_inputs(const Output& output, const FinalOutputs& outputs) {
  std::error_code error;
  for (const auto& [name, input] : outputs.inputs) {
    if (const auto way = path_below(input, output.path)) {
      refuse(output, fmt::format("{} {} {}; choose another name", *way == "." ? "is" : "holds", name, input.string()));
    }
    // Among a model's files or a checkpoint's only what is new and apart.
    if (!path_below(output.path, input)) continue;
    const bool replaces = !output.is_directory && fs::exists(output.path, error);
    if ((replaces && fs::exists(input / "config.json", error)) || fs::exists(input / ".metadata", error)) {
      refuse(output, fmt::format("lies in {} {}; choose another name", name, input.string()));
    }
  }
}

/// Says whose the output is that lies there, if this run must not replace it; else "".
/// \param there  the file or folder that tells that an output is there
std::string other_owner(const Output& output, const fs::path& there, const FinalOutputs& outputs) {
  std::error_code error;
  const bool is_empty = fs::is_directory(there, error) && fs::is_empty(there, error);
  if (outputs.overwrite || is_empty || !fs::exists(there, error)) return "";
  if (path_below(output.path, outputs.run_directory)) return "";
  const bool is_export = output.is_directory && there == output.path;
  const auto run = is_export ? run_of_export(output.path) : fs::path();
  if (!run.empty()) {
    const auto way = path_below(run, outputs.run_directory);
    if (!way || *way != ".") return "is the export of the run " + run.string();
    return outputs.continues ? "" : "is the export of an earlier run of this name, " + run.string();
  }
  if (is_export) return "is an export whose record names no run, as of fsdp-ckpt-convert";
  const bool is_own = std::any_of(outputs.own.begin(), outputs.own.end(), [&](const fs::path& own) {
    const auto way = path_below(own, output.path);
    return way && *way == ".";
  });
  if (is_own) return "";
  return (output.is_directory ? "holds an adapter" : "exists") +
         std::string(", and no earlier job of this run named it");
}

void check_owner(const Output& output, const fs::path& there, const FinalOutputs& outputs) {
  const auto owner = other_owner(output, there, outputs);
  if (!owner.empty()) refuse(output, owner + "; choose another name, or add --overwrite, which replaces it");
}

/// Its folder is made and a file can be made there.
void check_writable(const Output& output) {
  try {
    const auto folder = fs::absolute(output.path).parent_path();
    fs::create_directories(folder);
    const auto probe = folder / ("." + output.path.filename().string() + ".writable");
    replace_file(probe, "");
    fs::remove(probe);
  } catch (const std::exception& error) {
    throw IoError(fmt::format("{} cannot be written: {}", output.option, error.what()));
  }
}

void check(const Output& output, const FinalOutputs& outputs) {
  std::error_code error;
  const auto name = output.path.filename();
  if (name.empty() || name == "." || name == "..") refuse(output, "is no name for an output");
  check_run_directory(output, outputs.run_directory);
  check_inputs(output, outputs);
  if (output.is_directory) {
    const auto obstacle = export_obstacle(output.path);
    if (!obstacle.empty()) refuse(output, obstacle);
  } else {
    if (fs::is_directory(output.path, error)) refuse(output, "is a directory");
    seekable_output(output.path);
  }
  check_owner(output, output.path, outputs);
  check_writable(output);
}

/// Its files go into a directory, new or not, and nothing else there is touched.
void check_adapter(const Output& output, const FinalOutputs& outputs) {
  for (const auto& [name, input] : outputs.inputs) {
    const auto way = path_below(input, output.path);
    if (way && *way == ".")
      refuse(output, fmt::format("is {}, whose files an adapter beside them would change for others; choose another "
                                 "name",
                                 name));
  }
  std::error_code error;
  if (fs::exists(output.path, error) && !fs::is_directory(output.path, error)) refuse(output, "is a file");
  const auto a_file_in_it = output.path / "adapter_config.json";
  check_owner(output, a_file_in_it, outputs);
  check_writable({output.option, a_file_in_it, false});
}

}  // namespace

void check_final_outputs(const FinalOutputs& outputs) {
  const Output full{"--save-final-full", outputs.full, false}, hf{"--save-final-hf", outputs.hf, true};
  if (!outputs.full.empty()) check(full, outputs);
  if (!outputs.adapter.empty()) check_adapter({"--save-final-adapter", outputs.adapter, true}, outputs);
  if (outputs.hf.empty()) return;
  check(hf, outputs);
  if (!outputs.full.empty() && path_below(outputs.full, outputs.hf)) {
    refuse(full, "lies in the directory of --save-final-hf, which holds the model only; choose another name");
  }
}

}  // namespace fsdp
