#pragma once
// The one table of checkpoint formats: how each is recognised, opened and named. A new format is a folder beside this
// file and a row of the table in formats.cpp.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// The begin of a file, by which its format is recognised.
struct FileStart {
  const std::filesystem::path& path;
  std::string_view bytes;        ///< the first 512, or all
  std::uint64_t size_bytes = 0;  ///< of the file
};

struct CheckpointFormat {
  std::string_view name;       ///< for messages: "DeepSpeed"
  std::string_view sign = {};  ///< files by which a folder is recognised, for a message; "" where another row says so
  std::string_view help = {};  ///< the checkpoints, for the help of fsdp-ckpt-convert; "" where another row says so
  bool (*is_folder)(const std::filesystem::path& directory) = nullptr;  ///< null: never a folder
  bool (*is_file)(const FileStart& file) = nullptr;                     ///< null: never a file
  /// \throws FormatError, IoError
  std::unique_ptr<Source> (*open)(const std::filesystem::path& path) = nullptr;
  bool is_of_trainer = false;  ///< a layout around weights in another format, which open_weights() opens alone
  FormatWriter writer = {};    ///< without a name: the format is only read
};

/// A folder has the format of the first row that recognises it, a file that of the last one.
std::span<const CheckpointFormat> checkpoint_formats();

/// The formats that are written, in the order in which programs name them.
std::vector<const FormatWriter*> format_writers();

/// "torch, safetensors, hf, dcp, megatron or gguf": the names of those writers that `wanted` takes; null: all.
std::string format_names(bool (*wanted)(const FormatWriter&) = nullptr, std::string_view last = " or ");

/// The writer of that name; null: there is none.
const FormatWriter* find_writer(std::string_view name);

/// The writer of files with the suffix of `output`; null: its name does not say.
const FormatWriter* writer_of_suffix(const std::filesystem::path& output);

/// Opens the checkpoint at `path`, whose content determines the format: any of checkpoint_formats(), or a trainer's
/// layout around one (trainer_source.hpp). A local-state checkpoint comes with its flat parameters (un_flatten.hpp).
/// \throws FormatError naming what was looked for when `path` is none of these; IoError
std::unique_ptr<Source> open_source(const std::filesystem::path& path);

/// The same without what a trainer keeps beside the weights, and under the names of the files: a directory of
/// safetensors is these alone.
std::unique_ptr<Source> open_weights(const std::filesystem::path& path);

/// True for a directory that open_source() takes for a checkpoint, which may be damaged.
bool holds_checkpoint(const std::filesystem::path& directory);

}  // namespace fsdp
