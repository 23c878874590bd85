#pragma once
// What MPICH's launcher (hydra) prints on stdout about a rank that a signal ended, taken out of the ranks' own output.
#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp {

/// Drops, from bytes that come in pieces of any size, the box "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
/// and after one the three lines about an "EXIT STRING" if they are the last that comes. All else passes at once and
/// unchanged: only what may become one of the two waits, and passes when it becomes something else. The line end before
/// a box, which is hydra's, passes, too: if it waited, so would every line end of the ranks.
class HydraBanner {
 public:
  /// What can be written now that these bytes came.
  std::string pass(std::string_view bytes);
  /// What is still to be written when no more will come.
  std::string finish() { return take(true); }
  /// True once a box was dropped.
  bool dropped() const { return dropped_; }

 private:
  std::string take(bool at_end);
  std::size_t next_begin(std::size_t from) const;

  std::string text_{'.'};  ///< the last byte that passed (at first one that is no line end), and those that wait
  bool dropped_ = false;
};

}  // namespace fsdp
