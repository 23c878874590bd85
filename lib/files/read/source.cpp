#include "lib/files/read/source.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/base/little_endian.hpp"
#include "lib/files/formats/gguf.hpp"
#include "lib/files/read/chunked_source.hpp"
#include "lib/files/read/deepspeed_folder.hpp"
#include "lib/files/read/megatron_folder.hpp"
#include "lib/files/read/per_rank_source.hpp"
#include "lib/files/read/torch_checkpointing_source.hpp"
#include "lib/files/read/torch_file.hpp"
#include "lib/files/read/torch_source.hpp"
#include "lib/files/read/trainer_source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {
namespace {

static_assert(std::is_trivially_copyable_v<ReadSum>);

std::string gather_bytes(ProcessGroup& group, std::span<const ReadSum> mine) {
  std::string all;
  for (const auto& part : group.gather({reinterpret_cast<const char*>(mine.data()), mine.size_bytes()}, 0)) all += part;
  return all;
}

std::vector<ReadSum> sums_of(std::string_view bytes) {
  std::vector<ReadSum> sums(bytes.size() / sizeof(ReadSum));
  if (!sums.empty()) std::memcpy(sums.data(), bytes.data(), bytes.size());
  return sums;
}

/// The format of the checkpoint that a folder is; "" for none.
std::string_view format_of(const std::filesystem::path& path) {
  if (is_dcp_directory(path)) return "DCP";
  if (has_torch_checkpointing_metadata(path)) return "torch-checkpointing";
  if (is_safetensors_directory(path)) return "safetensors";
  if (is_deepspeed_folder(path)) return "DeepSpeed";
  if (is_per_rank_folder(path)) return "a file per rank";
  if (!megatron_iteration(path).empty()) return "Megatron-core";
  return is_torch_directory(path) ? "torch.save" : "";
}

/// "; ckpt below it is one (DeepSpeed)": checkpoints in a folder's folders, or in theirs.
std::string checkpoints_below(const std::filesystem::path& folder) {
  constexpr std::size_t kShown = 5, kMostFolders = 1000;
  std::vector<std::filesystem::path> level{folder};
  for (int depth = 0; depth < 2; ++depth) {
    std::vector<std::filesystem::path> below;
    std::vector<std::string> found;
    for (const auto& parent : level) {
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
        if (!entry.is_directory(error) || below.size() == kMostFolders) continue;
        below.push_back(entry.path());
      }
    }
    std::ranges::sort(below);
    for (const auto& path : below) {
      const auto format = format_of(path);
      if (!format.empty()) found.push_back(path.string() + " (" + std::string(format) + ")");
    }
    if (!found.empty()) {
      std::string text = found.size() == 1 ? "; a checkpoint below it is " : "; checkpoints below it are ";
      for (std::size_t i = 0; i < std::min(kShown, found.size()); ++i) text += (i == 0 ? "" : ", ") + found[i];
      return text + (found.size() > kShown ? ", ..." : "");
    }
    level = std::move(below);
  }
  return "";
}

std::unique_ptr<Source> open_directory(const std::filesystem::path& path) {
  if (is_dcp_directory(path)) return open_dcp(path);
  if (has_torch_checkpointing_metadata(path)) return open_torch_checkpointing(path);
  if (is_safetensors_directory(path)) return open_safetensors(path);
  if (is_deepspeed_folder(path)) return open_deepspeed(path);
  if (is_per_rank_folder(path)) return open_per_rank(path);
  if (const auto iteration = megatron_iteration(path); !iteration.empty()) return open_dcp(iteration);
  if (holds_torch_checkpointing_items(path)) return open_torch_checkpointing(path);
  std::error_code error;
  if (const auto tracker = path / kMegatronTracker; std::filesystem::exists(tracker, error))
    throw FormatError(tracker.string() +
                      ": names no folder beside it that has .metadata: of Megatron-core's formats torch_dist is read");
  if (is_torch_directory(path)) return TorchSource::of_model(path);
  if (::access(path.c_str(), R_OK | X_OK) != 0)
    throw IoError(path.string() + ": cannot be read: " + std::strerror(errno));
  throw FormatError(
      path.string() +
      ": is no checkpoint: it has neither .metadata (DCP; a save may have been cut short), nor "
      "model.safetensors.index.json, model*.safetensors, shard-*.safetensors, adapter_model.safetensors "
      "or pytorch_model.bin, nor is it a folder of DeepSpeed (latest, *_model_states.pt), of Megatron-core "
      "or of a file per rank" +
      checkpoints_below(path));
}

/// True when the file starts with a header length that fits the file and with the first byte of a header.
bool looks_like_safetensors(std::string_view first_bytes, std::uint64_t file_bytes) {
  return first_bytes.size() > 8 && first_bytes[8] == '{' &&
         detail::read_le<std::uint64_t>(first_bytes, 0) <= file_bytes - 8;
}

std::unique_ptr<Source> open_file(const std::filesystem::path& path) {
  std::string first(512, '\0');
  std::uint64_t file_bytes = 0;
  {
    const File file = File::open_read(path);
    file_bytes = file.size_bytes();
    first.resize(std::min<std::uint64_t>(first.size(), file_bytes));
    file.read_at(0, std::as_writable_bytes(std::span(first.data(), first.size())));
  }
  if (looks_like_torch_file(first)) return std::make_unique<TorchSource>(path);
  refuse_pieces_alone(path);
  if (first.starts_with(kGgufMagic)) return open_gguf(path);
  if (path.filename().string().ends_with(".bin.index.json")) return TorchSource::of_model(path);
  if (looks_like_safetensors(first, file_bytes) || path.extension() == ".safetensors" || path.extension() == ".json")
    return open_safetensors(path);
  if (path.filename() == ".metadata" || path.filename().string().ends_with(".metadata")) {
    return open_directory(path.parent_path().empty() ? "." : path.parent_path());
  }
  constexpr std::size_t tar_magic_at = 257;
  if (first.size() > tar_magic_at && first.substr(tar_magic_at).starts_with("ustar")) {
    throw FormatError(path.string(), 0, "is a tar file, as PyTorch wrote before 0.2; such files are not supported");
  }
  throw FormatError(
      path.string(), 0,
      "is no checkpoint: neither a file of torch.save (zip or legacy) nor safetensors nor GGUF starts like this");
}

}  // namespace

std::uint64_t SourceTensor::size_bytes() const {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(num_elements(shape)), dtype_size_bytes(dtype), &bytes)) {
    throw FormatError("tensor \"" + name + "\" has more bytes than 64 bits can count");
  }
  return bytes;
}

nlohmann::json Source::model_config() const {
  return info_.model_config.empty() ? nlohmann::json() : parse_json(info_.model_config, info_.directory.string());
}

bool is_local_state(const Source& source) {
  const auto is_flat = [](const SourceTensor& tensor) {
    const std::string_view name = tensor.name;
    const auto last = name.substr(name.rfind('.') + 1);  // npos + 1 == 0: the whole name
    return tensor.shape.size() == 1 && (last == "flat_param" || last == "_flat_param");
  };
  return std::any_of(source.tensors().begin(), source.tensors().end(), is_flat);
}

std::vector<ReadSum> gather_sums(ProcessGroup& group, std::span<const ReadSum> mine) {
  return sums_of(gather_bytes(group, mine));
}

std::vector<ReadSum> all_gather_sums(ProcessGroup& group, std::span<const ReadSum> mine) {
  return sums_of(group.broadcast_text(gather_bytes(group, mine), 0));
}

bool holds_checkpoint(const std::filesystem::path& directory) {
  return is_dcp_directory(directory) || is_safetensors_directory(directory) || is_deepspeed_folder(directory) ||
         is_per_rank_folder(directory) || is_trainer_folder(directory) || has_torch_checkpointing_metadata(directory) ||
         holds_torch_checkpointing_items(directory) || is_torch_directory(directory) ||
         !megatron_iteration(directory).empty();
}

std::unique_ptr<Source> open_source(const std::filesystem::path& path) {
  if (is_trainer_folder(path)) return open_trainer_folder(path);
  return as_trainer_checkpoint(open_weights(path));
}

std::unique_ptr<Source> open_weights(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none)
    throw IoError(path.string() + ": cannot be read: " + error.message());
  if (!std::filesystem::exists(status)) throw MissingInput(path.string() + ": there is no such file or directory");
  if (std::filesystem::is_directory(status)) return open_directory(path);
  return open_file(path);
}

}  // namespace fsdp
