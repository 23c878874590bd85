#pragma once
// A checkpoint of any format as named tensors and python values: what readers provide, what changes on the way
// (renaming, casting, un-flattening) decorates, and what writers, --inspect, --check and --verify consume.
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

#include "lib/base/dtype.hpp"
#include "lib/files/formats/dcp.hpp"
#include "lib/files/formats/pickle_value.hpp"
#include "lib/files/formats/safetensors.hpp"
#include "lib/files/formats/shard_record.hpp"

namespace fsdp {

class ProcessGroup;

/// One tensor: `shape`, row-major.
struct SourceTensor {
  std::string name;  ///< path elements joined by '.'
  StatePath path;    ///< place in the nested dict that a .pt of it has; {name} when the format knows of no nesting
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t num_shards = 1;     ///< pieces it is stored in
  std::uint64_t stored_bytes = 0;  ///< in the files, without headers; more than its size for a view of a larger storage
  std::optional<OtherType> other = {};  ///< bytes of a type that only safetensors can hold

  std::uint64_t size_bytes() const;
};

/// A python value that is no tensor. Names and paths as for tensors; its content comes from Source::value().
struct SourceValue {
  std::string name;
  StatePath path;
};

/// A pickled value with the document that owns it. The document holds no reference to a tensor below `value`.
struct LoadedValue {
  std::shared_ptr<const PickleDocument> document;
  PickleRef value = nullptr;
};

struct SourceInfo {
  std::string format;    ///< "DCP", "FSDP1 local state", "torch zip", "torch legacy", "safetensors", ...
  std::string producer;  ///< what wrote it ("PyTorch 2.4 or later", "fsdp-finetune"); "" where the files do not tell
  int world_size = 0;    ///< ranks that wrote it; 0: unknown
  std::vector<std::filesystem::path> files;     ///< data files, in the order in which messages and --inspect name them
  std::filesystem::path directory;              ///< that may hold config.json, run.json and tokenizer files beside it
  std::map<std::string, std::string> metadata;  ///< safetensors' __metadata__
  std::string model_config;                     ///< the model in run.json, as JSON; empty: none
  std::string adapter;  ///< where the tensors are an adapter's: adapter_config.json's fields, as JSON; else empty
  std::vector<std::string> remarks;  ///< what the user should know about what was opened
};

/// CRC-32 of bytes [begin, end) of storage number `storage`, as read; lets verify_sums() check storages that were read
/// in pieces, by several threads or ranks.
struct ReadSum {
  std::uint32_t storage = 0;
  std::uint64_t begin = 0, end = 0;
  std::uint32_t crc32 = 0;
};

/// A checkpoint open for reading; nothing but headers and indexes is in memory.
/// Const member functions may be called from several threads.
class Source {
 public:
  virtual ~Source() = default;

  const SourceInfo& info() const { return info_; }
  /// In the order in which the format lists them. Names are unique among tensors and values together.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  const std::vector<SourceValue>& values() const { return values_; }

  /// Copies elements [first, first + count) of the row-major tensor number `tensor` into `out`, exactly their bytes.
  /// Reads only the bytes it needs (for a view that is not contiguous: at most a small buffer at a time).
  /// \param sums  receives the CRC-32 of whatever came from storages whose CRC-32 the checkpoint recorded; may be null
  /// \return the CRC-32 of `out` when it was computed on the way, so that a writer need not compute it again
  /// \throws FormatError naming file, entry and offset; IoError; UsageError on elements outside the tensor
  virtual std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                            std::span<std::byte> out, std::vector<ReadSum>* sums) const = 0;

  /// True when a range of elements costs about as much as the whole (a transposed or scattered view): whoever copies
  /// it then reads it once, whole.
  virtual bool prefers_whole(std::size_t /*tensor*/) const { return false; }

  /// \throws FormatError as read()
  virtual LoadedValue value(std::size_t value) const = 0;

  /// Compares the sums that read() gave with the recorded ones, for every storage that they cover completely.
  /// \return the sums of storages that they do not cover: with those of other ranks they may
  /// \throws FormatError naming file and entry
  virtual std::vector<ReadSum> verify_sums(std::vector<ReadSum> /*sums*/) const { return {}; }

  /// Model configuration as JSON where the checkpoint carries one (run.json); null else.
  nlohmann::json model_config() const;

 protected:
  SourceInfo info_;
  std::vector<SourceTensor> tensors_;
  std::vector<SourceValue> values_;
};

/// Opens whatever lies at `path`, by content: a DCP directory of any vintage, one safetensors file, a directory of
/// safetensors, a torch.save file (zip or legacy), a checkpoint of fsdp-finetune.
/// Local-state checkpoints come as they are, flat parameters and all: see lib/files/transform/local_state.hpp.
/// \throws FormatError when it is none of these, saying what was looked for; IoError
std::unique_ptr<Source> open_source(const std::filesystem::path& path);

/// A directory that open_source() takes for a checkpoint: it may be damaged.
bool holds_checkpoint(const std::filesystem::path& directory);

/// True when the checkpoint holds FSDP1 flat parameters.
bool is_local_state(const Source& source);

/// All ranks' sums on rank 0, nothing elsewhere. Collective.
std::vector<ReadSum> gather_sums(ProcessGroup& group, std::span<const ReadSum> mine);

/// On every rank. Collective.
std::vector<ReadSum> all_gather_sums(ProcessGroup& group, std::span<const ReadSum> mine);

/// Whether these are files that DeepSpeed's ZeRO writes: DIR, or the folder that DIR/latest names.
bool is_deepspeed_folder(const std::filesystem::path& directory);

/// Whether it is one of DeepSpeed's *_model_states.pt.
bool is_deepspeed_file(const Source& source);

/// What to do with such a checkpoint, as the end of a sentence.
std::string deepspeed_advice();

}  // namespace fsdp
