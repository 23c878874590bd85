#pragma once
// A source whose tensors are put together from ranges of other sources' tensors.
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// Elements [first, first + count) of tensor number `tensor` of source number `source`.
struct TensorPiece {
  std::size_t source = 0, tensor = 0;
  std::uint64_t first = 0, count = 0;
};

class PieceSource : public Source {
 public:
  /// Passes through of `sources[0]`: its info and its model configuration.
  explicit PieceSource(std::vector<std::shared_ptr<const Source>> sources);

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool prefers_whole(std::size_t tensor) const override;
  LoadedValue value(std::size_t value) const override;
  std::vector<ReadSum> verify_sums(std::vector<ReadSum> sums) const override;

  const Source& source(std::size_t number) const { return *sources_.at(number); }
  std::size_t num_sources() const { return sources_.size(); }

  /// \param pieces  together the tensor's elements, in order; of its dtype
  /// \param padding  read and dropped behind the last element, so that checksums cover what belongs to no tensor
  /// \param is_alias  the pieces belong to another tensor as well, whose checksums count
  void add_tensor(SourceTensor tensor, std::vector<TensorPiece> pieces, std::vector<TensorPiece> padding = {},
                  bool is_alias = false);
  /// Value number `number` of source number `source` under another name.
  void add_value(SourceValue value, std::size_t source, std::size_t number);
  /// A value that no source has.
  void add_value(SourceValue value, LoadedValue loaded);

 private:
  struct Assembly {
    std::vector<TensorPiece> pieces, padding;
    bool is_alias = false;
  };
  struct ValueOrigin {
    std::size_t source = 0, number = 0;
    LoadedValue loaded;  ///< when it has a document
  };
  std::optional<std::uint32_t> read_piece(const TensorPiece& piece, std::span<std::byte> out,
                                          std::vector<ReadSum>* sums) const;

  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Assembly> assemblies_;
  std::vector<ValueOrigin> origins_;
};

}  // namespace fsdp
