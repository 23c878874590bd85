#pragma once
// A .pt file as a target, with the nested dicts and lists that the paths of tensors and values describe, as PyTorch's
// dcp_to_torch builds them.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/layout.hpp"
#include "lib/formats/zip.hpp"

namespace fsdp {

struct NestedNode;

/// A dict in the order in which the keys came first.
struct NestedDict {
  std::vector<std::pair<std::string, std::unique_ptr<NestedNode>>> items;
  std::map<std::string, std::size_t, std::less<>> positions;  ///< into items
};
struct NestedList {
  std::map<std::int64_t, std::unique_ptr<NestedNode>> items;  ///< without gaps: positions 0 to size - 1
};
/// The number of a tensor or value of the source.
struct NestedLeaf {
  bool is_tensor = false;
  std::size_t number = 0;
};
struct NestedNode {
  std::variant<std::monostate, NestedDict, NestedList, NestedLeaf> content;
};

/// Builds the nested object of a source. In a dict tensors come before values. A source without tensors and values is
/// an empty dict.
/// \throws RequestError naming tensors or values whose paths contradict each other, and lists with gaps
NestedNode nest(const Source& source);

/// Writes one .pt file as torch.save does, nested as dcp_to_torch nests; torch.load(weights_only=True) reads it.
class TorchTarget final : public Target {
 public:
  /// \param output  the file; the layout has its name without the directory, the archive without the suffix, too
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
