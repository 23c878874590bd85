#pragma once
// Filter for the messages that MPICH's launcher (hydra) prints on stdout when a signal ends a rank.
#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp {

/// Removes the box "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES" from a stream of bytes that arrives in pieces
/// of any size, and the three lines about an "EXIT STRING" that follow a box at the end of the stream. All other bytes
/// pass unchanged and at once; only bytes that may be the start of either message are held back until they can be told
/// apart. The newline before a box, which hydra prints, passes too: holding it would delay every line of the ranks.
class HydraBanner {
 public:
  /// Returns the bytes that can be written after `bytes` arrived.
  std::string pass(std::string_view bytes);
  /// Returns the remaining bytes at the end of the stream.
  std::string finish() { return take(true); }
  /// True once a box was removed.
  bool dropped() const { return dropped_; }

 private:
  std::string take(bool at_end);
  std::size_t next_begin(std::size_t from) const;

  std::string text_{'.'};  ///< the last byte that passed (initially not a newline) and the bytes held back
  bool dropped_ = false;
};

}  // namespace fsdp
