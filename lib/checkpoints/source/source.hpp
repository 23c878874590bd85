#pragma once
// A checkpoint of any format as named tensors and python values. Readers implement Source; transforms (renaming,
// casting, un-flattening) decorate a Source; writers and comparisons consume one.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/types/dtype.hpp"
#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/formats/shard_record.hpp"

namespace fsdp {

class ProcessGroup;

/// A tensor of shape `shape`, row-major.
struct SourceTensor {
  std::string name;  ///< path elements joined by '.'
  StatePath path;    ///< place in the nested dict of a .pt file; {name} when the format has no nesting
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t num_shards = 1;          ///< number of stored pieces
  std::uint64_t stored_bytes = 0;       ///< in the files, without headers; a view may have a larger storage
  std::optional<OtherType> other = {};  ///< set for an element type that only safetensors, or only GGUF, can hold

  std::uint64_t size_bytes() const;
};

/// A python value that is no tensor. Name and path are like those of tensors; Source::value() reads the content.
struct SourceValue {
  std::string name;
  StatePath path;
};

/// A pickled value and the document that owns it. Nothing below `value` refers to a tensor.
struct LoadedValue {
  std::shared_ptr<const PickleDocument> document;
  PickleRef value = nullptr;
};

struct SourceInfo {
  std::string format;    ///< "DCP", "FSDP1 local state", "torch zip", "torch legacy", "safetensors", ...
  std::string producer;  ///< writer ("PyTorch 2.4 or later", "fsdp-finetune"); "" when the files do not tell
  std::string trainer;   ///< program whose layout the checkpoint has: "accelerate", "Lightning", ...; "" for none
  int world_size = 0;    ///< ranks that wrote the checkpoint; 0: unknown
  std::vector<std::filesystem::path> files;     ///< data files, in the order in which messages and --inspect name them
  std::filesystem::path directory;              ///< directory that may hold config.json, run.json and tokenizer files
  std::map<std::string, std::string> metadata;  ///< __metadata__ of safetensors files, key-value pairs of GGUF
  std::string model_config;                     ///< model configuration in run.json, as JSON; empty: none
  std::string adapter;  ///< fields of adapter_config.json as JSON when the tensors are those of an adapter; else empty
  bool unties_head = false;          ///< a merged adapter has made two weights of a head tied to its embedding
  std::vector<std::string> remarks;  ///< notes for the user about the opened files

  /// The path that stands for the whole checkpoint in messages: its first data file, or its directory where it has
  /// none.
  const std::filesystem::path& named_file() const { return files.empty() ? directory : files.front(); }
};

/// CRC-32 of bytes [begin, end) of a storage as they were read. verify_sums() uses these to check storages that several
/// threads or ranks read in pieces.
struct ReadSum {
  std::uint32_t storage = 0;
  std::uint64_t begin = 0, end = 0;
  std::uint32_t crc32 = 0;
};

/// A checkpoint that is open for reading; only headers and indexes are in memory.
/// Const member functions may be called from several threads.
class Source {
 public:
  virtual ~Source() = default;

  const SourceInfo& info() const { return info_; }
  /// In the order of the format. Names are unique among tensors and values together.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  const std::vector<SourceValue>& values() const { return values_; }

  /// Copies elements [first, first + count) of the row-major tensor number `tensor` into `out`, exactly their bytes.
  /// Reads only the bytes it needs (for a view that is not contiguous: at most a small buffer at a time).
  /// \param sums  receives the CRC-32 of whatever came from storages whose CRC-32 the checkpoint recorded; may be null
  /// \return the CRC-32 of `out` when it was computed on the way, so that a writer need not compute it again
  /// \throws FormatError naming file, entry and offset; IoError; std::invalid_argument on elements outside the tensor
  virtual std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                            std::span<std::byte> out, std::vector<ReadSum>* sums) const = 0;

  /// True when reading a range of elements costs about as much as reading the whole tensor (a transposed or scattered
  /// view). Such a tensor should be read once, whole.
  virtual bool prefers_whole(std::size_t /*tensor*/) const { return false; }

  /// \throws FormatError as read()
  virtual LoadedValue value(std::size_t value) const = 0;

  /// Compares the sums that read() gave with the recorded CRC-32 of every storage that the sums cover completely.
  /// \return the sums of the other storages, which sums of other ranks may complete
  /// \throws FormatError naming file and entry
  virtual std::vector<ReadSum> verify_sums(std::vector<ReadSum> /*sums*/) const { return {}; }

  /// Model configuration as JSON when the checkpoint has one (run.json); else null.
  nlohmann::json model_config() const;

 protected:
  SourceInfo info_;
  std::vector<SourceTensor> tensors_;
  std::vector<SourceValue> values_;
};

/// True when the checkpoint holds FSDP1 flat parameters.
bool is_local_state(const Source& source);

/// Returns the sums of all ranks on rank 0, and nothing on other ranks. Collective.
std::vector<ReadSum> gather_sums(ProcessGroup& group, std::span<const ReadSum> local);

/// Returns the sums of all ranks on every rank. Collective.
std::vector<ReadSum> all_gather_sums(ProcessGroup& group, std::span<const ReadSum> local);

}  // namespace fsdp
