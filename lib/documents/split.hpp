#pragma once
// Two parts of a data set, of which one is held out.
#include <string_view>

namespace fsdp {

/// The part that is read. Documents whose hash lies below `share` are held out. The hash is of a text, or of what is
/// read of a record, so equal documents are in one part, whatever file and place they have.
struct Split {
  double share = 0;       ///< in [0, 1); 0: all documents are read
  bool held_out = false;  ///< the held-out ones are read

  bool is_on() const { return share > 0; }
  bool reads(std::string_view document) const;
};

}  // namespace fsdp
