#pragma once
// The files of a checkpoint of DeepSpeed.
// Source: deepspeed 0.19 deepspeed/runtime/engine.py (_get_zero_ckpt_name, _get_ckpt_name).
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

struct DeepSpeedFolder {
  std::filesystem::path given;   ///< what the user named: it may hold config.json and tokenizer files
  std::filesystem::path folder;  ///< global_stepN, or any other tag
  std::map<std::size_t, std::filesystem::path> model, optimizer;  ///< by rank; a single model file has rank 0
  bool is_universal = false;
};

/// True for a directory with files of DeepSpeed, in the directory itself or in the folder that DIR/latest names.
bool is_deepspeed_folder(const std::filesystem::path& directory);

/// \throws FormatError naming files of layouts that are not read: tensor and pipeline parallelism, experts
DeepSpeedFolder list_deepspeed_files(const std::filesystem::path& directory);

/// The ranks of a save of `world` ranks. Ranks beyond them are left from another save: `remarks` names them.
/// \throws FormatError naming ranks whose optimizer files are missing
std::vector<std::size_t> ranks_of_save(const DeepSpeedFolder& files, std::size_t world,
                                       std::vector<std::string>& remarks);

/// Ranks as a list for a message, cut after ten.
std::string rank_list(const std::vector<std::size_t>& ranks);

/// True for one of DeepSpeed's *_model_states.pt.
bool is_deepspeed_file(const Source& source);

/// Warnings for users about the numbers in such a file; empty for any other file.
std::vector<std::string> deepspeed_remarks(const Source& source);

/// Advice for a single file of DeepSpeed, as the end of a sentence.
std::string deepspeed_advice();

/// Opens ZeRO 1, 2 and 3, stage 0 and universal checkpoints: "model.<name>" are the float32 masters, "optim.state.
/// <name>.<key>" the optimizer's states, "optim.param_groups.<n>" its settings; the other values have their own names.
/// \throws FormatError, IoError
std::unique_ptr<Source> open_deepspeed(const std::filesystem::path& directory);

}  // namespace fsdp
