// Source: deepspeed 0.19 runtime/engine.py (_save_zero_checkpoint, _get_ckpt_name), utils/zero_to_fp32.py.
#include "lib/files/read/deepspeed.hpp"

#include <algorithm>
#include <string_view>

#include "lib/base/file.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kLongestTag_bytes = 4096;

bool has_state_files(const std::filesystem::path& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt")) return true;
  }
  return false;
}

}  // namespace

bool is_deepspeed_folder(const std::filesystem::path& directory) {
  if (has_state_files(directory)) return true;
  std::error_code error;
  if (std::filesystem::is_regular_file(directory / "zero_to_fp32.py", error)) return true;
  const auto latest = directory / "latest";
  if (!std::filesystem::is_regular_file(latest, error)) return false;
  const auto tag = read_text_file(latest, kLongestTag_bytes);
  const auto name = tag.substr(0, tag.find_first_of("\r\n"));
  return !name.empty() && name.find('/') == std::string::npos && has_state_files(directory / name);
}

bool is_deepspeed_file(const Source& source) {
  return std::any_of(source.values().begin(), source.values().end(),
                     [](const SourceValue& value) { return value.name == "ds_version"; });
}

std::string deepspeed_advice() {
  return "DeepSpeed keeps a model's numbers in shards by rank (*_optim_states.pt; with ZeRO-3 in nothing else), which "
         "are not read here: make one file of them with the zero_to_fp32.py that lies beside them, and give that";
}

}  // namespace fsdp
