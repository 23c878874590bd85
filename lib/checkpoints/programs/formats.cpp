#include "lib/checkpoints/programs/formats.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ranges>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/checkpoints/programs/dcp/dcp_source.hpp"
#include "lib/checkpoints/programs/dcp/dcp_target.hpp"
#include "lib/checkpoints/programs/deepspeed/deepspeed_folder.hpp"
#include "lib/checkpoints/programs/gguf/gguf.hpp"
#include "lib/checkpoints/programs/gguf/gguf_export.hpp"
#include "lib/checkpoints/programs/gguf/gguf_source.hpp"
#include "lib/checkpoints/programs/hf/hf_export.hpp"
#include "lib/checkpoints/programs/hf/safetensors_source.hpp"
#include "lib/checkpoints/programs/megatron/megatron_folder.hpp"
#include "lib/checkpoints/programs/megatron/megatron_target.hpp"
#include "lib/checkpoints/programs/per_rank/per_rank_source.hpp"
#include "lib/checkpoints/programs/torch_checkpointing/torch_checkpointing_source.hpp"
#include "lib/checkpoints/programs/torch_save/torch_source.hpp"
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/programs/trainers/trainer_source.hpp"
#include "lib/formats/torch_file.hpp"

namespace fsdp {
namespace {

bool is_dcp_metadata(const FileStart& file) { return file.path.filename().string().ends_with(".metadata"); }

std::unique_ptr<Source> open_dcp_of(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return open_dcp(path);
  return open_weights(path.parent_path().empty() ? "." : path.parent_path());  // the folder of a .metadata
}

bool is_index_of_bin(const std::filesystem::path& path) {
  return path.filename().string().ends_with(".bin.index.json");
}

/// Recognised by a header length that fits the file and the first byte of a header, or by the name.
bool is_safetensors_file(const FileStart& file) {
  const bool has_header = file.bytes.size() > 8 && file.bytes[8] == '{' &&
                          detail::read_le<std::uint64_t>(file.bytes, 0) <= file.size_bytes - 8;
  return has_header || file.path.extension() == ".safetensors" || file.path.extension() == ".json";
}

std::unique_ptr<Source> open_safetensors_of(const std::filesystem::path& path) {
  refuse_pieces_alone(path);
  return open_safetensors(path);
}

std::unique_ptr<Source> open_torch_of(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path) || is_index_of_bin(path)) return TorchSource::of_model(path);
  return std::make_unique<TorchSource>(path);
}

std::unique_ptr<Target> make_safetensors_target(WriteRequest& request) {
  request.source = view_complex_as_real(std::move(request.source));
  return std::make_unique<SafetensorsTarget>(request.options.output);
}

std::unique_ptr<Target> make_torch_target(WriteRequest& request) {
  return std::make_unique<TorchTarget>(request.options.output);
}

constexpr std::array kFormats{
    CheckpointFormat{
        .name = "a trainer's",
        .help = "checkpoints of trainers (accelerate, Hugging Face's Trainer, Lightning, Composer, torchtitan)",
        .is_folder = is_trainer_folder,
        .open = open_trainer_folder,
        .is_of_trainer = true},
    CheckpointFormat{.name = "DCP",
                     .sign = ".metadata (DCP; a save may have been cut short)",
                     .help = "PyTorch's distributed checkpoints (FSDP1, FSDP2), FSDP1 local state",
                     .is_folder = is_dcp_directory,
                     .is_file = is_dcp_metadata,
                     .open = open_dcp_of,
                     .writer = {.name = "dcp", .takes_shards = true, .make = make_dcp_target}},
    CheckpointFormat{.name = "torch-checkpointing",
                     .sign = "metadata.pkl (torch-checkpointing)",
                     .is_folder = has_torch_checkpointing_metadata,
                     .open = open_torch_checkpointing},
    CheckpointFormat{.name = "safetensors",
                     .sign = "model.safetensors.index.json, model*.safetensors, shard-*.safetensors, "
                             "adapter_model.safetensors",
                     .help = "safetensors files and directories of them",
                     .is_folder = is_safetensors_directory,
                     .open = open_safetensors_of,
                     .writer = {.name = "hf",
                                .writes_model = true,
                                .takes_other_types = true,
                                .takes_max_shard = true,
                                .takes_config = true,
                                .adapt = adapt_to_hf,
                                .make = make_hf_target}},
    CheckpointFormat{.name = "safetensors",
                     .is_file = is_safetensors_file,
                     .open = open_safetensors_of,
                     .writer = {.name = "safetensors",
                                .suffixes = " .safetensors",
                                .takes_other_types = true,
                                .make = make_safetensors_target}},
    CheckpointFormat{.name = "DeepSpeed",
                     .sign = "latest or *_model_states.pt (DeepSpeed)",
                     .help = "DeepSpeed's folders (ZeRO 1 to 3, universal)",
                     .is_folder = is_deepspeed_folder,
                     .open = open_deepspeed},
    CheckpointFormat{.name = "a file per rank",
                     .sign = "model_world_size_*_rank_*.pt or pytorch_model_fsdp_*.bin (a file per rank)",
                     .help = "files per rank (verl, SkyRL, torch-checkpointing)",
                     .is_folder = is_per_rank_folder,
                     .open = open_per_rank},
    CheckpointFormat{.name = "Megatron-core",
                     .sign = "latest_checkpointed_iteration.txt (Megatron-core)",
                     .help = "Megatron-core's (torch_dist)",
                     .is_folder = is_megatron_folder,
                     .open = open_megatron,
                     .writer = {.name = "megatron",
                                .writes_model = true,
                                .takes_shards = true,
                                .adapt = adapt_to_megatron,
                                .make = make_megatron_target}},
    CheckpointFormat{
        .name = "torch-checkpointing", .is_folder = holds_torch_checkpointing_items, .open = open_torch_checkpointing},
    CheckpointFormat{.name = "GGUF",
                     .help = "llama.cpp's GGUF",
                     .is_file = [](const FileStart& file) { return file.bytes.starts_with(kGgufMagic); },
                     .open = open_gguf,
                     .writer = {.name = "gguf",
                                .suffixes = " .gguf",
                                .writes_model = true,
                                .takes_config = true,
                                .adapt = adapt_to_gguf,
                                .make = make_gguf_target}},
    CheckpointFormat{
        .name = "torch.save",
        .sign = "pytorch_model.bin",
        .help = ".pt files",
        .is_folder = is_torch_directory,
        .is_file =
            [](const FileStart& file) { return looks_like_torch_file(file.bytes) || is_index_of_bin(file.path); },
        .open = open_torch_of,
        .writer = {.name = "torch", .suffixes = " .pt .pth .bin", .make = make_torch_target}},
};

/// \param weights  pass over the layouts of trainers
const CheckpointFormat* format_of_folder(const std::filesystem::path& path, bool weights) {
  const auto* const found = std::ranges::find_if(kFormats, [&](const CheckpointFormat& row) {
    return !(weights && row.is_of_trainer) && row.is_folder != nullptr && row.is_folder(path);
  });
  return found == kFormats.end() ? nullptr : &*found;
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
      if (const auto* format = format_of_folder(path, true))
        found.push_back(path.string() + " (" + std::string(format->name) + ")");
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

[[noreturn]] void refuse_folder(const std::filesystem::path& path) {
  if (::access(path.c_str(), R_OK | X_OK) != 0)
    throw IoError(path.string() + ": cannot be read: " + std::strerror(errno));
  std::string signs;
  for (const auto& row : kFormats)
    if (!row.sign.empty()) signs += (signs.empty() ? "" : ", nor ") + std::string(row.sign);
  throw FormatError(path.string() + ": is no checkpoint: it has neither " + signs + checkpoints_below(path));
}

std::unique_ptr<Source> open_file(const std::filesystem::path& path) {
  constexpr std::size_t kFirstBytes = 512, kTarMagicAt = 257;
  std::string first(kFirstBytes, '\0');
  std::uint64_t file_bytes = 0;
  {
    const File file = File::open_read(path);
    file_bytes = file.size_bytes();
    first.resize(std::min<std::uint64_t>(first.size(), file_bytes));
    file.read_at(0, std::as_writable_bytes(std::span(first.data(), first.size())));
  }
  const FileStart start{path, first, file_bytes};
  for (const auto& row : std::views::reverse(kFormats))
    if (row.is_file != nullptr && row.is_file(start)) return row.open(path);
  if (first.size() > kTarMagicAt && first.substr(kTarMagicAt).starts_with("ustar")) {
    throw FormatError(path.string(), 0, "is a tar file, as PyTorch wrote before 0.2; such files are not supported");
  }
  throw FormatError(
      path.string(), 0,
      "is no checkpoint: neither a file of torch.save (zip or legacy) nor safetensors nor GGUF starts like this");
}

}  // namespace

std::span<const CheckpointFormat> checkpoint_formats() { return kFormats; }

std::vector<const FormatWriter*> format_writers() {
  std::vector<const FormatWriter*> writers;
  for (const auto& row : kFormats)
    if (!row.writer.name.empty()) writers.push_back(&row.writer);
  return writers;
}

std::string format_names(bool (*wanted)(const FormatWriter&), std::string_view last) {
  std::vector<std::string_view> names;
  for (const auto* writer : format_writers())
    if (wanted == nullptr || wanted(*writer)) names.push_back(writer->name);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text.append(i == 0 ? "" : i + 1 == names.size() ? last : ", ").append(names[i]);
  return text;
}

const FormatWriter* find_writer(std::string_view name) {
  const auto writers = format_writers();
  const auto found = std::ranges::find(writers, name, &FormatWriter::name);
  return found == writers.end() ? nullptr : *found;
}

const FormatWriter* writer_of_suffix(const std::filesystem::path& output) {
  const auto suffix = ascii_lower(output.extension().string());
  for (const auto* writer : format_writers())
    if (!suffix.empty() && (std::string(writer->suffixes) + " ").find(" " + suffix + " ") != std::string::npos)
      return writer;
  return nullptr;
}

bool holds_checkpoint(const std::filesystem::path& directory) { return format_of_folder(directory, false) != nullptr; }

std::unique_ptr<Source> open_source(const std::filesystem::path& path) {
  for (const auto& row : kFormats)
    if (row.is_of_trainer && row.is_folder(path)) return row.open(path);
  return as_trainer_checkpoint(open_weights(path));
}

std::unique_ptr<Source> open_weights(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none)
    throw IoError(path.string() + ": cannot be read: " + error.message());
  if (!std::filesystem::exists(status)) throw MissingInput(path.string() + ": there is no such file or directory");
  if (!std::filesystem::is_directory(status)) return open_file(path);
  const auto* format = format_of_folder(path, true);
  if (format == nullptr) refuse_folder(path);
  return format->open(path);
}

}  // namespace fsdp
