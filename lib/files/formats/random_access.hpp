#pragma once
// Bytes that can be read at any place: a file, or a file's content that only exists in memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"

namespace fsdp {

class RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual std::string name() const = 0;  ///< for messages
  virtual std::uint64_t size_bytes() const = 0;
  /// Fills `out` from `offset_bytes`. \throws FormatError when the bytes end before that; IoError
  virtual void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const = 0;
};

/// The file must outlive it.
class FileAccess : public RandomAccess {
 public:
  explicit FileAccess(const File& file) : file_(file) {}
  std::string name() const override { return file_.path().string(); }
  std::uint64_t size_bytes() const override { return file_.size_bytes(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    file_.read_at(offset_bytes, out);
  }

 private:
  const File& file_;
};

class MemoryAccess : public RandomAccess {
 public:
  MemoryAccess(std::string name, std::string bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}
  std::string name() const override { return name_; }
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (offset_bytes > bytes_.size() || out.size() > bytes_.size() - offset_bytes) {
      throw FormatError(name_, bytes_.size(), "the data ends here, more was expected");
    }
    const auto from = std::as_bytes(std::span(bytes_.data(), bytes_.size())).subspan(offset_bytes, out.size());
    std::copy(from.begin(), from.end(), out.begin());
  }

 private:
  std::string name_, bytes_;
};

}  // namespace fsdp
