#pragma once
// Which python values PyTorch's DCP keeps together: a list without tensors and dicts in it is one item.
// run.json of one of our checkpoints, brought along into a DCP directory of another world size.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/files/formats/dcp.hpp"
#include "lib/files/formats/pickle_writer.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp {

namespace detail {

/// One item: a value of the source by itself, or several as the leaves of one list.
struct ValueGroup {
  std::string name;
  StatePath path;
  /// By list positions from the outermost list inwards; a value by itself has none.
  std::map<std::vector<std::int64_t>, std::size_t> values;
};

/// In the order of each group's first value. A list of which positions are missing stays apart, value by value.
/// Source of the rule: torch 2.11 torch/distributed/checkpoint/_traverse.py (traverse_state_dict).
std::vector<ValueGroup> group_values(const Source& source);

/// Writes the group as one value. \throws UsageError, FormatError as Source::value() and emit_pickle_value()
void emit_group(PickleWriter& pickle, const Source& source, const ValueGroup& group);

}  // namespace detail

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

/// The same run.json with another world size and other files, and the checksum that goes with them.
/// \param file  for messages. \throws FormatError when `text` is no run.json or its checksum is wrong
std::string updated_run_json(const std::string& text, const std::string& file, int world_size,
                             std::span<const WrittenFile> files);

/// When `directory` has a run.json, makes the target write it, brought up to date. \throws FormatError, IoError
void carry_run_json(DcpTargetOptions& options, const std::filesystem::path& directory);

}  // namespace fsdp
