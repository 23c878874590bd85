#pragma once
// Several token files in a folder, one after the other.
#include <filesystem>
#include <memory>
#include <vector>

#include "lib/token_files/token_file.hpp"

namespace fsdp {

/// \param folder  for messages \param parts  at least one
/// \throws FormatError naming the part that has rows of another length than the first, documents beside rows, or a mask
/// beside parts without
std::unique_ptr<TokenFile> join_token_files(const std::filesystem::path& folder,
                                            std::vector<std::unique_ptr<TokenFile>> parts);

}  // namespace fsdp
