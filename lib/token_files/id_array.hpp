#pragma once
// Whole numbers one after the other in a file of another program, read in place as ids.
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/base/files/file.hpp"
#include "lib/base/types/named_values.hpp"

namespace fsdp {

/// How a file holds its numbers.
struct NumberType {
  int bytes = 2;  ///< 1, 2, 4 or 8
  bool is_signed = false;
  bool is_big_endian = false;
};

/// Types of ids in files that hold ids and nothing else.
inline constexpr std::array kRawTypeNames{NamedValue<NumberType>{"uint16", {2, false, false}},
                                          NamedValue<NumberType>{"uint32", {4, false, false}}};

class IdArray {
 public:
  /// \param offset  in bytes, of the first number
  /// \throws FormatError when the file ends before the last of `count` numbers
  IdArray(std::shared_ptr<const File> file, std::uint64_t offset, std::int64_t count, NumberType type);

  const File& file() const { return *file_; }
  std::int64_t count() const { return count_; }
  /// Reads out.size() ids: the one at place `first`, the one `step` places on, ... Any number of threads may read.
  /// \throws FormatError naming file and place of a number that is no id, which is in [0, 2^31)
  void read(std::int64_t first, std::span<std::int32_t> out, std::int64_t step = 1) const;

 private:
  void read_block(std::int64_t first, std::span<std::int32_t> out) const;

  std::shared_ptr<const File> file_;
  std::uint64_t offset_;
  std::int64_t count_;
  NumberType type_;
};

}  // namespace fsdp
