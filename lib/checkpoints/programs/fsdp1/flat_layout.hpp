#pragma once
// Finds which parameters lie in which flat parameter of an FSDP1 local state, and where, and assembles tensors from
// ranges of others.
// Source: PyTorch FlatParamHandle._init_flat_param_and_metadata, torch/distributed/fsdp/_flat_param.py.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoints/programs/fsdp1/un_flatten.hpp"
#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// One parameter within the flat parameter, in elements.
struct FlatItem {
  std::uint64_t offset = 0, count = 0;
  std::uint64_t gap = 0;  ///< padding elements right after it
};

struct FlatLayout {
  std::uint64_t alignment = 0;  ///< alignment of the offsets, in elements; 0: packed, without any padding
  std::vector<FlatItem> items;  ///< in the order of the parameters
  std::uint64_t size = 0;

  bool has_padding() const;
};

/// Lays out parameters of `counts` elements in one flat parameter.
/// \param alignment  of offsets, in elements; 0: packed (use_orig_params=False, or PyTorch before 2.1)
/// \param world_size  with an alignment, the end is padded to a multiple of it
/// \throws FormatError on overflow
FlatLayout flat_layout(std::span<const std::uint64_t> counts, std::uint64_t alignment, std::uint64_t world_size);

/// The alignments that PyTorch may have used, the likeliest first: 16 bytes of float32, bfloat16, float64, float8; and
/// 1.
std::span<const std::uint64_t> flat_alignments();

/// All different layouts of exactly `size` elements. When the packed layout fits, it is the only one: any padding would
/// have made the flat parameter longer.
std::vector<FlatLayout> layouts_of_size(std::span<const std::uint64_t> counts, std::uint64_t size,
                                        std::span<const std::uint64_t> world_sizes);

/// Elements [first, first + count) of tensor number `tensor` of source number `source`.
struct TensorPiece {
  std::size_t source = 0, tensor = 0;
  std::uint64_t first = 0, count = 0;
};

class PieceSource : public Source {
 public:
  /// A source whose tensors are assembled from ranges of tensors of other sources. info() and model_config() are those
  /// of `sources[0]`.
  explicit PieceSource(std::vector<std::shared_ptr<const Source>> sources);

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool prefers_whole(std::size_t tensor) const override;
  LoadedValue value(std::size_t value) const override;
  std::vector<ReadSum> verify_sums(std::vector<ReadSum> sums) const override;

  const Source& source(std::size_t number) const { return *sources_.at(number); }
  std::size_t num_sources() const { return sources_.size(); }

  /// \param pieces  the elements of the tensor in order, in its dtype
  /// \param padding  elements that are read and dropped after the last element, so that checksums also cover what
  /// belongs to no tensor
  /// \param is_alias  the pieces also belong to another tensor, whose checksums count
  void add_tensor(SourceTensor tensor, std::vector<TensorPiece> pieces, std::vector<TensorPiece> padding = {},
                  bool is_alias = false);
  /// Adds value number `number` of source number `source` under another name.
  void add_value(SourceValue value, std::size_t source, std::size_t number);
  /// Adds a value that no source has.
  void add_value(SourceValue value, LoadedValue loaded);

 private:
  struct Assembly {
    std::vector<TensorPiece> pieces, padding;
    bool is_alias = false;
  };
  struct ValueOrigin {
    std::size_t source = 0, number = 0;
    LoadedValue loaded;  ///< used when it has a document
  };
  std::optional<std::uint32_t> read_piece(const TensorPiece& piece, std::span<std::byte> out,
                                          std::vector<ReadSum>* sums) const;

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Assembly> assemblies_;
  std::vector<ValueOrigin> origins_;
};

/// One FSDP unit of a local state.
struct FlatUnit {
  std::size_t tensor = 0;               ///< number of the flat parameter in the source
  std::string module;                   ///< the key without "_flat_param": "", "model." or "model.transformer.h.0."
  std::vector<std::size_t> parameters;  ///< numbers in the shapes, in the order of the flat parameter
  FlatLayout layout;                    ///< of `parameters`
};

struct FlatUnits {
  std::string prefix;           ///< prefix of every parameter name, from the user's nesting: "" or "model."
  std::vector<FlatUnit> units;  ///< in the order of the modules of the unwrapped model, outer modules before inner ones
  std::vector<std::size_t> separate;  ///< parameters that FSDP did not flatten, under their own names
  bool has_slices = false;  ///< use_orig_params: the source also has slices of one rank, named like parameters
};

/// True for the key of a 1-D tensor that ends in `_flat_param` (PyTorch 2) or `flat_param` (1.13).
bool is_flat_key(const SourceTensor& tensor);

/// Finds the nesting, the units and the layouts that fit the sizes of the flat parameters exactly. Reads padding
/// elements only.
/// \throws FormatError explaining for each unit what does not fit; RequestError when a unit has no shapes at all
FlatUnits find_flat_units(const Source& source, const ParameterShapes& shapes);

}  // namespace fsdp
