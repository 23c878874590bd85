#pragma once
// Reading what a token file says of where its ids come from.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/text/token_files/token_file_writer.hpp"

namespace fsdp {

/// The attributes that the writers of token files leave; empty and 0 where they are missing or of another type, as in
/// files of other programs. `sources` are left out.
/// \throws IoError, FormatError when the file cannot be opened
TokenFileNotes read_token_notes(const std::filesystem::path& file);

/// Datasets beside the ids that other programs read and none here: labels, attention_mask and their kin. With
/// `loss_mask` there, which says the same, none. \throws as read_token_notes()
std::vector<std::string> unread_datasets(const std::filesystem::path& file);

}  // namespace fsdp
