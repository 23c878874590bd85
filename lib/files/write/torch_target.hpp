#pragma once
// The nested dicts and lists that the paths of tensors and values describe, as PyTorch's dcp_to_torch builds them.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/files/formats/zip.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp {

struct NestedNode;

/// In the order in which the keys came first.
struct NestedDict {
  std::vector<std::pair<std::string, std::unique_ptr<NestedNode>>> items;
  std::map<std::string, std::size_t, std::less<>> positions;  ///< into items
};
struct NestedList {
  std::map<std::int64_t, std::unique_ptr<NestedNode>> items;  ///< complete: positions 0 to size - 1
};
/// Number of a tensor or value of the source.
struct NestedLeaf {
  bool is_tensor = false;
  std::size_t number = 0;
};
struct NestedNode {
  std::variant<std::monostate, NestedDict, NestedList, NestedLeaf> content;
};

/// Tensors come before values where one dict has both. A source without anything is an empty dict.
/// \throws UsageError naming tensors or values whose paths contradict each other, and lists with holes
NestedNode nest(const Source& source);

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
