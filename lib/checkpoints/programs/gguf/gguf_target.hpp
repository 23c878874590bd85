#pragma once
#include <filesystem>
#include <utility>
#include <vector>

#include "lib/checkpoints/programs/gguf/gguf.hpp"
#include "lib/checkpoints/target/layout.hpp"

namespace fsdp {

/// Writes one GGUF file. Tensors keep the names and the order of the source.
class GgufTarget final : public Target {
 public:
  /// \param output  the file; the layout has its name without the directory
  GgufTarget(const std::filesystem::path& output, std::vector<GgufEntry> entries)
      : name_(output.filename()), entries_(std::move(entries)) {}

  bool is_directory() const override { return false; }
  /// \throws RequestError on python values and on a tensor of a type that ggml lacks
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t>) override { return {}; }
  bool wants_checksums() const override { return false; }

 private:
  std::filesystem::path name_;
  std::vector<GgufEntry> entries_;
};

}  // namespace fsdp
