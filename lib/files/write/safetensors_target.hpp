#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/files/write/layout.hpp"

namespace fsdp {

/// One safetensors file, and beside it X.json with the python values where the source has any.
class SafetensorsTarget final : public Target {
 public:
  /// \param output  the file; its name without directory is what the layout has
  explicit SafetensorsTarget(const std::filesystem::path& output) : name_(output.filename()) {}

  bool is_directory() const override { return false; }
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t>) override { return {}; }
  bool wants_checksums() const override { return false; }

 private:
  std::filesystem::path name_;
};

namespace detail {

/// Appends a safetensors file with these tensors of the source to `layout`.
/// \throws UsageError on complex tensors and on names that are not UTF-8
void add_safetensors_file(Layout& layout, const std::filesystem::path& name, const Source& source,
                          std::span<const std::size_t> tensors, const std::map<std::string, std::string>& metadata);

/// What a file made of the source should carry: its own metadata, and that it holds PyTorch's tensors. Without what
/// would describe the source's own shards.
std::map<std::string, std::string> carried_metadata(const Source& source);

/// Appends a file whose bytes are all known.
void add_known_file(Layout& layout, const std::filesystem::path& name, std::string bytes);

}  // namespace detail

/// One tensor under two names, where config.json says that they are tied: GPT-2's, and Llama's and its kin's.
inline constexpr std::string_view kTiedHead = "lm_head.weight";
inline constexpr std::array<std::string_view, 2> kTiedEmbeddings{"transformer.wte.weight", "model.embed_tokens.weight"};
/// Whether `config` says so. transformers ties GPT-2's and Gemma's by default, others not.
bool says_tied(const nlohmann::json& config);

struct HfTargetOptions {
  std::uint64_t max_shard_bytes = 5'000'000'000;  ///< of tensor data in one file; a larger tensor has a file to itself
  /// Directories that may hold config.json, generation_config.json and tokenizer files; the first that has one wins.
  std::vector<std::filesystem::path> carry_from;
  /// Files whose content is given: they win over those in carry_from.
  std::map<std::string, std::string> files;
  /// The tokenizer's files are those in here, or among `files`, and none of carry_from.
  std::optional<std::filesystem::path> tokenizer_from;
};

/// A directory as transformers' save_pretrained() writes it: model.safetensors, or several files with an index,
/// and the small files beside. The tensors have the names that they are given.
class HfTarget final : public Target {
 public:
  explicit HfTarget(HfTargetOptions options) : options_(std::move(options)) {}

  bool is_directory() const override { return true; }
  /// Leaves out the output layer where config.json says that it is tied to the embedding; both are read and compared.
  /// \throws UsageError on python values, on complex tensors, and on an output layer that is not the embedding although
  /// config.json says so; FormatError on a config.json that is no JSON object
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t>) override { return {}; }
  bool wants_checksums() const override { return false; }

 private:
  std::map<std::string, std::string> carried_files() const;

  HfTargetOptions options_;
};

}  // namespace fsdp
