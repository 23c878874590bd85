#pragma once
// A DCP directory as a target: its data files, `.metadata`, and run.json of a checkpoint of ours for another world
// size.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/checkpoints/programs/dcp/value_groups.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/layout.hpp"

namespace fsdp {

/// A file of the finished output.
struct WrittenFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;  ///< of the whole file
};

struct DcpTargetOptions {
  int num_shards = 1;
  /// Small files that describe the others, such as run.json: their names, and a function that returns their contents,
  /// in the order of the names, when the data files and `.metadata` are known. See carry_run_json().
  std::vector<std::string> extra_names = {};
  std::function<std::vector<std::string>(std::span<const WrittenFile>)> extra_files = {};
  bool keep_pieces = false;  ///< a tensor that the source stores in N pieces gets N chunks along dim 0, or more
};

/// A DCP directory as `num_shards` ranks write it: `__<r>_0.distcp` for each rank with data, and `.metadata`. Tensors
/// are split along dim 0 into parts of ceil(rows / num_shards) rows; scalars and python values are in the file of rank
/// 0. A python list that holds neither tensors nor dicts is one item, as in PyTorch, even when the source lists its
/// elements.
class DcpTarget final : public Target {
 public:
  /// \throws RequestError when num_shards is not between 1 and 65536
  explicit DcpTarget(DcpTargetOptions options);

  bool is_directory() const override { return true; }
  Layout plan(const Source& source) override;
  std::vector<LayoutLiteral> finish(std::span<const std::uint32_t> crcs) override;
  bool wants_checksums() const override { return true; }

 private:
  /// A range of bytes of a file, and their CRC-32.
  struct Span {
    std::size_t file;
    std::uint64_t offset_bytes, size_bytes;
    std::uint32_t crc32;
  };
  void add_value(Layout& layout, const Source& source, const detail::ValueGroup& group);
  void add_tensor(Layout& layout, const Source& source, std::size_t number, int shard);
  /// Adds rows [first, end) of a tensor as one chunk.
  void add_rows(Layout& layout, const Source& source, std::size_t number, int shard, std::int64_t first,
                std::int64_t end);
  /// Appends an archive of `size_bytes` to the file of the shard. Returns the number of the file.
  std::size_t append(Layout& layout, int shard, DcpItem& item, std::uint64_t size_bytes);
  std::vector<WrittenFile> written_files(std::vector<Span> spans) const;

  DcpTargetOptions options_;
  std::vector<LayoutFile> files_;
  std::vector<DcpItem> items_;
  std::vector<std::size_t> item_of_segment_;
  std::vector<LayoutSegment> segments_;
  std::vector<Span> known_;  // the literals of the layout
};

/// run_json_text() of a run.json with the given files.
std::string run_json_text(nlohmann::json run, std::span<const WrittenFile> files);

/// When `directory` has a run.json, makes the target write it, updated for the new files. \throws FormatError, IoError
void carry_run_json(DcpTargetOptions& options, const std::filesystem::path& directory);

/// FormatWriter::make() of DCP. run.json goes along when all tensors of its run do, unchanged.
std::unique_ptr<Target> make_dcp_target(WriteRequest& request);

}  // namespace fsdp
