#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/files/formats/dcp.hpp"
#include "lib/files/write/layout.hpp"
#include "lib/files/write/value_groups.hpp"

namespace fsdp {

/// A file of the finished output.
struct WrittenFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;  ///< of the whole file
};

struct DcpTargetOptions {
  int num_shards = 1;
  /// Small files that say something about the others, such as run.json: their names, and a function that makes their
  /// bytes, in the order of the names, once the data files and `.metadata` are known. See carry_run_json().
  std::vector<std::string> extra_names;
  std::function<std::vector<std::string>(std::span<const WrittenFile>)> extra_files;
};

/// A DCP directory as `num_shards` ranks write it: `__<r>_0.distcp` for each rank with data, tensors split along dim 0
/// into ceil(rows / num_shards) rows, scalars and python values in rank 0's file, and `.metadata`. Python lists that
/// hold neither tensors nor dicts are one item each, as PyTorch has them, even when the source lists their elements.
class DcpTarget final : public Target {
 public:
  /// \throws UsageError when num_shards is not between 1 and 65536
  explicit DcpTarget(DcpTargetOptions options);

  bool is_directory() const override { return true; }
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t> crcs) override;
  bool wants_checksums() const override { return true; }

 private:
  /// Bytes [offset, offset + size) of a file whose CRC-32 is known.
  struct Span {
    std::size_t file;
    std::uint64_t offset_bytes, size_bytes;
    std::uint32_t crc32;
  };
  void add_value(Layout& layout, const Source& source, const detail::ValueGroup& group);
  void add_tensor(Layout& layout, const Source& source, std::size_t number, int shard);
  /// Places an archive of `size_bytes` at the end of the shard's file. Returns the file's number.
  std::size_t append(Layout& layout, int shard, DcpItem& item, std::uint64_t size_bytes);
  std::vector<WrittenFile> written_files(std::vector<Span> spans) const;

  DcpTargetOptions options_;
  std::vector<LayoutFile> files_;
  std::vector<DcpItem> items_;
  std::vector<std::size_t> item_of_segment_;
  std::vector<LayoutSegment> segments_;
  std::vector<Span> known_;  // the layout's literals
};

}  // namespace fsdp
