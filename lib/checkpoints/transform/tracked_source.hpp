#pragma once
// Which tensors and values of a checkpoint a program has read, so that it can tell what it left out.
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoints/transform/transform.hpp"

namespace fsdp {

class ProcessGroup;

/// A source with the tensors and values of another one. Remembers which of them are read.
class TrackedSource final : public DecoratedSource {
 public:
  explicit TrackedSource(std::shared_ptr<const Source> source);
  ~TrackedSource() override;

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  LoadedValue value(std::size_t value) const override;

  /// Names of tensors and values that no rank has read so far. A tensor without elements counts as read.
  /// Collective over `ranks`, which have opened the same checkpoint.
  std::vector<std::string> unread(ProcessGroup& ranks) const;

 private:
  class Marks;
  std::unique_ptr<Marks> marks_;  ///< set by several threads
};

/// Names in a checkpoint's folder of the files that were read for it: data, their index, and what tells its model.
std::set<std::string> files_read(const SourceInfo& info);

}  // namespace fsdp
