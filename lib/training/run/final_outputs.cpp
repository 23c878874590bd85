#include "lib/training/run/final_outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/output_file.hpp"
#include "lib/files/write/output_directory.hpp"

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
