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

#include "lib/checkpoints/target/layout.hpp"

namespace fsdp {

/// Writes one safetensors file, and X.json beside it with the python values when the source has any.
class SafetensorsTarget final : public Target {
 public:
  /// \param output  the file; the layout has its name without the directory
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
/// \throws RequestError on complex tensors and on names that are not UTF-8
void add_safetensors_file(Layout& layout, const std::filesystem::path& name, const Source& source,
                          std::span<const std::size_t> tensors, const std::map<std::string, std::string>& metadata);

/// The metadata of a file made of the source: the metadata of the source, without entries that describe its shards, and
/// the note that the tensors are those of PyTorch.
std::map<std::string, std::string> carried_metadata(const Source& source);

/// True when two tensors of the source have one type, one shape and equal elements.
bool are_equal(const Source& source, std::size_t first, std::size_t second);

/// Appends a file whose bytes are known.
void add_known_file(Layout& layout, const std::filesystem::path& name, std::string bytes);

}  // namespace detail

/// The name of the output layer that config.json may declare as tied to the embedding (token_embeddings()).
inline constexpr std::string_view kTiedHead = "lm_head.weight";
/// True when `config` ties them. transformers ties those of some families by default (FamilyFacts::tied).
bool ties_word_embeddings(const nlohmann::json& config);

struct HfTargetOptions {
  std::uint64_t max_shard_bytes = 5'000'000'000;  ///< tensor data per file; a larger tensor has a file to itself
  /// Directories that may hold config.json, generation_config.json and tokenizer files. The first one that has a file
  /// wins.
  std::vector<std::filesystem::path> carry_from;
  /// Files with the given content, which take precedence over those in carry_from.
  std::map<std::string, std::string> files;
  /// When set, tokenizer files come from here or from `files`, and never from carry_from.
  std::optional<std::filesystem::path> tokenizer_from;
};

/// Writes a directory as transformers' save_pretrained() does: model.safetensors, or several files with an index, and
/// the small files beside them. Tensors keep the names of the source.
class HfTarget final : public Target {
 public:
  explicit HfTarget(HfTargetOptions options) : options_(std::move(options)) {}

  bool is_directory() const override { return true; }
  /// Leaves out the output layer when config.json ties it to the embedding; reads both to compare them.
  /// \throws RequestError on python values, on complex tensors, and on an output layer that differs from the embedding
  /// although config.json ties them; FormatError on a config.json that is no JSON object
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t>) override { return {}; }
  bool wants_checksums() const override { return false; }

 private:
  std::map<std::string, std::string> carried_files() const;

  HfTargetOptions options_;
};

}  // namespace fsdp
