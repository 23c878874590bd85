#pragma once
#include <filesystem>

#include "lib/files/formats/zip_records.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp {

/// One .pt file as torch.save writes it, nested as dcp_to_torch nests; torch.load(weights_only=True) reads it.
class TorchTarget final : public Target {
 public:
  /// \param output  the file; its name without directory is what the layout has, and without suffix the archive's
  explicit TorchTarget(const std::filesystem::path& output);

  bool is_directory() const override { return false; }
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t> crcs) override;
  bool wants_checksums() const override { return true; }

 private:
  std::filesystem::path name_;
  ZipPlan zip_;
};

}  // namespace fsdp
