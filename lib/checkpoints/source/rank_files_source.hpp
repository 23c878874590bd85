#pragma once
// The base of readers of checkpoints for which every rank wrote files of its own with torch.save.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/checkpoints/source/chunked_source.hpp"
#include "lib/checkpoints/source/pickle_node.hpp"
#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/torch_blob.hpp"
#include "lib/formats/torch_file.hpp"

namespace fsdp {

/// Elements of a storage. `rest` elements follow them in the storage and belong to no tensor.
struct Segment {
  std::uint32_t storage = 0;
  std::uint64_t first = 0, count = 0, rest = 0;
};

/// Flat elements of one type, in one part or in one part per rank.
struct Flat {
  DType dtype = DType::f32;
  std::vector<std::vector<Segment>> parts;

  std::uint64_t part_size(std::size_t part) const {
    std::uint64_t size = 0;
    for (const auto& segment : parts[part]) size += segment.count;
    return size;
  }
};

/// A tensor in a flat: its elements [p * each, (p + 1) * each) are elements [first, first + each) of part p. `gap`
/// padding elements follow in the last part.
struct PlaceInFlat {
  std::size_t flat = 0;
  std::uint64_t first = 0, each = 0, gap = 0;
};
/// A tensor with a storage of its own.
struct OwnPlace {
  std::uint32_t storage = 0;
  TensorView view;
};

/// A tensor of the ranks: blocks of a distributed one, or a plain one, of which every rank has a copy.
struct RankTensor {
  DType dtype = DType::f32;
  Shape shape;
  bool is_plain = false;
  bool is_seen = false;  ///< on a rank
  std::vector<Block> blocks;
  std::vector<OwnPlace> places;  ///< by block; of a plain tensor by rank, if it is flat, else of the first rank
  std::set<Shape> offsets;       ///< of blocks: replicas repeat them
};

/// Numbers the storages of all files together. Data files are opened when they are read, so that thousands of ranks
/// need no more open files than a few.
class RankFilesSource : public ChunkedSource {
 public:
  /// \throws FormatError for a value that is not plain, and as ChunkedSource
  LoadedValue value(std::size_t value) const override;

 protected:
  using Place = std::variant<PlaceInFlat, OwnPlace>;

  /// Adds a tensor that lies in one place. \throws FormatError
  void add(StatePath path, DType dtype, Shape shape, Place place);
  /// Adds a tensor of several blocks, each with a place. \throws FormatError when the blocks do not tile the tensor
  void add(StatePath path, DType dtype, Shape shape, std::vector<Block> blocks, std::vector<OwnPlace> places);
  /// The place of a tensor of a file.
  OwnPlace own_place(const TorchFile& file, const TensorView& view) { return {add_storage(file, view), view}; }
  /// A flat tensor of a file. \param is_first  sets `dtype`; else the type must be `dtype`. \throws FormatError
  Segment segment_of(const TorchFile& file, const PickleNode& node, DType& dtype, bool is_first);

  std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool chunk_prefers_whole(ChunkNumber chunk) const override;

  /// Adds the storage of a view of `file`. \return its number, which is equal for views of one storage of one file
  std::uint32_t add_storage(const TorchFile& file, const TensorView& view);
  /// Adds storage number `own` of a file. \param describe  called for a storage that is new
  std::uint32_t add_storage(const std::filesystem::path& path, std::uint32_t own,
                            const std::function<TorchStorage()>& describe);
  /// Adds one rank's part of a tensor. \param node  a DTensor, a ShardedTensor or a plain tensor
  /// \param in_model  plain tensors are copies of one another; else flat ones may be parts
  /// \throws FormatError for parts that do not belong together
  void take(const TorchFile& file, std::size_t rank, const PickleNode& node, RankTensor& tensor,
            const std::string& name, bool in_model);
  /// Adds a block of a tensor, unless it is empty or repeats one.
  static void take_block(RankTensor& tensor, Block block, OwnPlace place);
  void add_whole(StatePath path, const RankTensor& tensor);
  /// Compares the first 64 KiB. \pre both have one type and shape
  bool same_bytes(const OwnPlace& a, const OwnPlace& b) const;
  /// Elements [first, first + count) of a row-major view of a storage; as Source::read().
  std::optional<std::uint32_t> read_view(std::uint32_t storage, const TensorView& view, std::uint64_t first,
                                         std::uint64_t count, std::span<std::byte> out,
                                         std::vector<ReadSum>* sums) const;
  std::optional<RecordedSum> recorded_sum(std::uint32_t storage) const override;

  /// Counts the names of all entries: a value that is shared may repeat under many. \throws FormatError beyond a limit
  void count_name(const std::string& name);

  using Document = std::shared_ptr<const PickleDocument>;
  void add_value(StatePath path, Document document, PickleRef value);
  /// Adds a value of a file, or a remark that names what the value needs.
  void add_plain_value(StatePath path, Document document, const PickleNode& node);
  /// Adds a value, and the tensors inside it, under their own names.
  void add_loose(StatePath path, const TorchFile& file, const PickleNode& node);
  /// Adds a value that no file has.
  void add_value(StatePath path, const nlohmann::json& value);

  std::vector<Flat> flats_;
  std::vector<Place> places_;           // by chunk
  std::vector<std::string> differing_;  // plain tensors of which ranks have different copies

 private:
  void take_plain(const TorchFile& file, std::size_t rank, const TensorView& view, const PickleNode& node,
                  RankTensor& tensor, const std::string& name, bool in_model, bool is_first);
  std::vector<std::int64_t> integers(const TorchFile& file, const TensorView& view);
  std::optional<std::uint32_t> read_flat(ChunkNumber chunk, const PlaceInFlat& place, std::uint64_t first,
                                         std::uint64_t count, std::span<std::byte> out,
                                         std::vector<ReadSum>* sums) const;
  std::optional<std::uint32_t> read_part(const Flat& flat, std::size_t part, std::uint64_t first, std::uint64_t count,
                                         std::span<std::byte> out, std::vector<ReadSum>* sums) const;
  void read_padding(const Flat& flat, std::size_t part, std::uint64_t first, std::uint64_t count,
                    std::vector<ReadSum>* sums) const;

  struct Storage {
    std::uint32_t file = 0;
    std::uint64_t begin_bytes = 0, size_bytes = 0;
    std::optional<std::uint32_t> crc32;  ///< when recorded
    std::string entry;                   ///< for messages
  };
  std::uint64_t name_bytes_ = 0;
  FileSet data_files_;
  std::map<std::filesystem::path, std::uint32_t> number_of_file_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> number_of_;  // by file and number in the file
  std::vector<Storage> storages_;
  std::vector<LoadedValue> loaded_;  // by value
};

/// A parameter group of an optimizer whose states have numbers.
struct NumberedGroup {
  std::vector<Shape> shapes;       ///< of the states; {-1} where there is none
  std::vector<std::string> names;  ///< param_names of PyTorch 2.6 and later, for an optimizer of named parameters
};

/// param_names of an entry of param_groups; empty where it has none.
std::vector<std::string> names_of_group(const PickleNode& group);

/// The place in `names` of a parameter: its own name, or the only one that is its end, or the reverse, as wrappers add
/// words in front.
std::optional<std::size_t> find_parameter_name(const std::string& name, const std::vector<std::string>& names);

/// Finds which tensor each number of an optimizer is. The names of the groups decide where they have such names of the
/// model; else shapes do: numbers count group after group, and every group lists its tensors in the model's order.
/// \param names, shapes  of the tensors in the model's order
/// \return numbers in `names` by group; nothing when a name is not known, or shapes allow more than one way, or none
std::optional<std::vector<std::vector<std::size_t>>> order_of_numbers(const std::vector<NumberedGroup>& groups,
                                                                      const std::vector<std::string>& names,
                                                                      const std::vector<Shape>& shapes);

/// The elements of a path joined by '.'.
std::string joined(const StatePath& path);

}  // namespace fsdp
