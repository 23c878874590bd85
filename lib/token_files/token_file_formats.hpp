#pragma once
// The readers of token files, which the table in token_file.cpp lists.
//
// Each has a function that recognises a file by its name and its first 16 bytes, and one that opens it: \throws
// IoError, FormatError naming file and place of what is wrong
#include <filesystem>
#include <memory>
#include <string_view>

#include "lib/token_files/token_file.hpp"

namespace fsdp {

bool is_hdf5_tokens(const std::filesystem::path& file, std::string_view head);
std::unique_ptr<TokenFile> open_hdf5_tokens(const std::filesystem::path& file, const TokenFileOptions& options);
bool is_arrow_tokens(const std::filesystem::path& file, std::string_view head);
/// As is_token_file(), of a file for which is_arrow_tokens() is true.
bool holds_ids(const std::filesystem::path& file, const std::string& field);
std::unique_ptr<TokenFile> open_arrow_tokens(const std::filesystem::path& file, const TokenFileOptions& options);
bool is_megatron(const std::filesystem::path& file, std::string_view head);
std::unique_ptr<TokenFile> open_megatron_tokens(const std::filesystem::path& file, const TokenFileOptions& options);
bool is_llmc(const std::filesystem::path& file, std::string_view head);
std::unique_ptr<TokenFile> open_llmc_tokens(const std::filesystem::path& file, const TokenFileOptions& options);
bool is_llmq(const std::filesystem::path& file, std::string_view head);
std::unique_ptr<TokenFile> open_llmq_tokens(const std::filesystem::path& file, const TokenFileOptions& options);
bool is_npy(const std::filesystem::path& file, std::string_view head);
std::unique_ptr<TokenFile> open_npy_tokens(const std::filesystem::path& file, const TokenFileOptions& options);
bool is_raw(const std::filesystem::path& file, std::string_view head);
std::unique_ptr<TokenFile> open_raw_tokens(const std::filesystem::path& file, const TokenFileOptions& options);

}  // namespace fsdp
