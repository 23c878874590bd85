#pragma once
// A value of a pickle with its place, for readers that expect a certain content.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/shard_record.hpp"

namespace fsdp {

/// The document must outlive the node. \throws FormatError naming file, byte, key and what was expected
struct PickleNode {
  PickleRef value = nullptr;
  std::string file;  ///< for messages
  std::string key;   ///< place in the document, for messages; "" for the root

  /// The item of a dict; nothing without this key, for None and for a value that is no dict.
  std::optional<PickleNode> find(std::string_view name) const;
  PickleNode at(std::string_view name) const;
  /// True for a dict that is not empty and whose keys are str or int.
  bool is_open_dict() const;
  /// The items of a dict in their order; names are those of str and int keys.
  std::vector<std::pair<std::string, PickleNode>> entries() const;
  /// The items of a list or a tuple.
  std::vector<PickleNode> items() const;

  std::int64_t integer() const;
  std::uint64_t count() const;  ///< an integer that is not negative
  std::string text() const;
  Shape shape() const;  ///< torch.Size, or a tuple or list of counts

  [[noreturn]] void fail(const std::string& what) const;
};

}  // namespace fsdp
