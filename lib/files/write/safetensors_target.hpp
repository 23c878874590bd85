#pragma once
#include <filesystem>

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
}  // namespace fsdp
