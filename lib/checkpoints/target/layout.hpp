#pragma once
// The plan of an output down to the byte, made before any tensor is read: the size of every file, the bytes that are
// known, and which elements of which tensor go where. One copier then serves all formats, threads and ranks can share
// the work, and memory holds a few pieces only.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Elements [first, first + count) of tensor number `tensor` of the source, which are written at `offset_bytes`.
struct LayoutSegment {
  std::size_t file = 0;  ///< index into Layout::files
  std::uint64_t offset_bytes = 0;
  std::size_t tensor = 0;
  std::uint64_t first = 0, count = 0;
};

/// Bytes that do not depend on tensor data.
struct LayoutLiteral {
  std::size_t file = 0;
  std::uint64_t offset_bytes = 0;
  std::string bytes;
};

struct LayoutFile {
  std::filesystem::path name;  ///< relative to the output directory; the file name of a single-file output
  std::uint64_t size_bytes = 0;
};

struct Layout {
  std::vector<LayoutFile> files;
  std::vector<LayoutLiteral> literals;
  std::vector<LayoutSegment> segments;
};

/// A format to write. Deterministic: every rank that plans the same source gets the same layout.
class Target {
 public:
  virtual ~Target() = default;
  /// True when the output is a directory of files rather than one file.
  virtual bool is_directory() const = 0;
  /// \throws RequestError when the format cannot hold what the source has, naming the tensor or value
  virtual Layout plan(const Source& source) = 0;
  /// Returns what depends on the checksums of the data (zip descriptors and directories), and small files that come
  /// last.
  /// \param crcs  CRC-32 of each segment of the layout
  virtual std::vector<LayoutLiteral> finish(std::span<const std::uint32_t> crcs) = 0;
  /// False when finish() ignores `crcs`: the copy then need not compute them.
  virtual bool wants_checksums() const = 0;
};

}  // namespace fsdp
