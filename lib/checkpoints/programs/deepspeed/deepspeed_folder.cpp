#include "lib/checkpoints/programs/deepspeed/deepspeed_folder.hpp"

#include <algorithm>
#include <charconv>
#include <regex>
#include <system_error>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kLongestTag_bytes = 4096;

bool is_state_file(const std::string& name) {
  return name.ends_with("_model_states.pt") || name.ends_with("-model_states.pt") || name.ends_with("_optim_states.pt");
}

bool has_state_files(const std::filesystem::path& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_state_file(entry->path().filename().string())) return true;
  }
  return false;
}

/// The folder that DIR/latest or DIR/latest_universal names, if it has files of DeepSpeed; else empty.
std::filesystem::path folder_of_tag(const std::filesystem::path& directory) {
  std::error_code error;
  for (const char* name : {"latest", "latest_universal"}) {
    if (!std::filesystem::is_regular_file(directory / name, error)) continue;
    const auto text = read_text_file(directory / name, kLongestTag_bytes);
    const auto tag = text.substr(0, text.find_first_of("\r\n"));
    // A name from a file must not lead out of the directory.
    if (tag.empty() || tag == "." || tag == ".." || tag.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
      continue;
    if (has_state_files(directory / tag)) return directory / tag;
  }
  return {};
}

std::size_t number_of_rank(const std::string& digits) {
  std::size_t rank = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return rank;
}

[[noreturn]] void refuse_layout(const std::filesystem::path& file) {
  const auto name = file.filename().string();
  const std::string why = name.find("expert") != std::string::npos || name.starts_with("expp_")
                              ? "experts of a mixture are stored by expert"
                          : name.starts_with("layer_") ? "pipeline stages are stored by layer"
                                                       : "a part of a model that tensor or pipeline parallelism cut";
  throw FormatError(file.string() + ": " + why +
                    ", which is not read: only data-parallel checkpoints (mp_rank_00) of DeepSpeed are; make a "
                    "universal checkpoint of it with DeepSpeed's ds_to_universal.py, or export it from the run");
}

}  // namespace

bool is_deepspeed_folder(const std::filesystem::path& directory) {
  if (has_state_files(directory)) return true;
  std::error_code error;
  return std::filesystem::is_regular_file(directory / "zero_to_fp32.py", error) || !folder_of_tag(directory).empty();
}

DeepSpeedFolder list_deepspeed_files(const std::filesystem::path& directory) {
  static const std::regex kNames(
      "(bf16_|fp16_)?(zero_pp_rank_([0-9]{1,6})_)?mp_rank_([0-9]{1,6})_(model|optim)_states\\.pt");
  DeepSpeedFolder found;
  found.given = directory;
  found.folder = has_state_files(directory) ? directory : folder_of_tag(directory);
  if (found.folder.empty())
    throw FormatError(
        directory.string() +
        ": is a checkpoint of DeepSpeed, but no folder with *_model_states.pt is there: \"latest\" should "
        "name it; give that folder itself");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(found.folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::error_code error;
  found.is_universal = std::filesystem::is_directory(found.folder / "zero", error) &&
                       std::ranges::none_of(files, [](const std::filesystem::path& file) {
                         return file.filename().string().ends_with("_optim_states.pt");
                       });
  for (const auto& file : files) {
    const auto name = file.filename().string();
    if (!is_state_file(name)) continue;
    std::smatch match;
    if (!std::regex_match(name, match, kNames) || number_of_rank(match[4]) != 0) {
      if (found.is_universal) continue;  // its tensors are whole
      refuse_layout(file);
    }
    auto& files_of_kind = match[5] == "model" ? found.model : found.optimizer;
    const auto [known, is_new] = files_of_kind.emplace(number_of_rank(match[3]), file);
    if (!is_new)
      throw FormatError(file.string() + ": " + known->second.filename().string() +
                        " beside it is of the same rank: files of two runs lie in one folder; remove those of the run "
                        "that you do not want");
  }
  if (found.model.empty())
    throw FormatError(found.folder.string() +
                      ": no *_model_states.pt is in this folder of DeepSpeed, which has the names and shapes of the "
                      "parameters");
  return found;
}

std::string rank_list(const std::vector<std::size_t>& ranks) {
  constexpr std::size_t most = 10;
  std::string list;
  for (std::size_t i = 0; i < std::min(most, ranks.size()); ++i) list += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return list + (ranks.size() > most ? ", ..." : "");
}

std::vector<std::size_t> ranks_of_save(const DeepSpeedFolder& files, std::size_t world,
                                       std::vector<std::string>& remarks) {
  std::vector<std::size_t> ranks, missing, stale;
  for (std::size_t rank = 0; rank < world; ++rank) (files.optimizer.contains(rank) ? ranks : missing).push_back(rank);
  for (const auto& [rank, file] : files.optimizer)
    if (rank >= world) stale.push_back(rank);
  if (!missing.empty())
    throw FormatError(files.folder.string() + ": " + std::to_string(world) +
                      " ranks wrote this checkpoint, and the *_optim_states.pt of rank " + rank_list(missing) +
                      " are missing: copy the whole folder (each node may have kept its own ranks' files)");
  if (!stale.empty())
    remarks.push_back(files.folder.string() + ": the files of rank " + rank_list(stale) +
                      " are left from another save of more ranks and are not read (this one is of " +
                      std::to_string(world) + ")");
  return ranks;
}

bool is_deepspeed_file(const Source& source) {
  return std::any_of(source.values().begin(), source.values().end(),
                     [](const SourceValue& value) { return value.name == "ds_version"; });
}

std::vector<std::string> deepspeed_remarks(const Source& source) {
  const auto is_short = [](const SourceTensor& tensor) {
    return tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
  };
  if (!is_deepspeed_file(source) || std::none_of(source.tensors().begin(), source.tensors().end(), is_short)) return {};
  return {source.info().named_file().string() +
          ": is one of DeepSpeed's: these are the weights that products were computed with, the float32 masters lie in "
          "the *_optim_states.pt beside it (give the folder instead of the file)"};
}

std::string deepspeed_advice() {
  return "DeepSpeed keeps a model's numbers in shards by rank (*_optim_states.pt; with ZeRO-3 in nothing else): give "
         "the folder instead of one of its files";
}

}  // namespace fsdp
