#pragma once
// Places in a text, one for each byte of another.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace fsdp {

/// Takes 4 bytes for each place in a text of less than 4 GiB, else 8.
class TextPlaces {
 public:
  /// \param text_bytes  the largest place
  explicit TextPlaces(std::size_t text_bytes = 0) : is_wide_(text_bytes > std::numeric_limits<std::uint32_t>::max()) {}

  void add(std::size_t place, std::size_t times = 1) {
    if (is_wide_) {
      wide_.insert(wide_.end(), times, place);
    } else {
      narrow_.insert(narrow_.end(), times, static_cast<std::uint32_t>(place));
    }
  }
  void resize(std::size_t size) {
    if (is_wide_) {
      wide_.resize(size);
    } else {
      narrow_.resize(size);
    }
  }
  std::size_t size() const { return is_wide_ ? wide_.size() : narrow_.size(); }
  std::size_t operator[](std::size_t i) const { return is_wide_ ? wide_[i] : narrow_[i]; }

 private:
  bool is_wide_;
  std::vector<std::uint32_t> narrow_;
  std::vector<std::size_t> wide_;
};

}  // namespace fsdp
