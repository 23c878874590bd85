#pragma once
// The one way into a model's master weights: any world size and strategy reads what any other, or any program, wrote.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/read/stored_quantization.hpp"
#include "lib/files/transform/grow_vocabulary.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/checkpoints/plan_load.hpp"

namespace fsdp {

// Whether weights are those of before, on any number of ranks (lib/files/transform/base_weights.hpp).

class WeightHash {
 public:
  /// Elements of a parameter as they are stored. \param first  number of the first of them in the parameter
  void add(std::size_t param, std::int64_t first, const at::Tensor& values);
  /// 16 hexadecimal digits. Collective over the ranks that have the rows.
  std::string of_all(ProcessGroup& ranks) const;

 private:
  std::uint64_t sum_ = 0;
};

}  // namespace fsdp

namespace fsdp::detail {

// Parts of a checkpoint's tensors as ATen's, with the checksums of what was read.

class RowReader {
 public:
  explicit RowReader(const Source& source) : source_(source) {}

  /// Rows [first_row, first_row + num_rows) of a tensor of `shape`, as they are stored. \pre num_rows > 0
  at::Tensor rows(const TensorOffset& place, Shape shape, std::int64_t first_row, std::int64_t num_rows);
  /// Elements [first, first + count), flat.
  at::Tensor elements(std::size_t tensor, std::int64_t first, std::int64_t count);
  /// Bytes [first, first + count) of a tensor, whatever they are called. \pre whole elements
  at::Tensor bytes(std::size_t tensor, std::int64_t first, std::int64_t count);

  const std::vector<ReadSum>& sums() const { return sums_; }
  const Source& source() const { return source_; }

 private:
  const Source& source_;
  std::vector<ReadSum> sums_;
};

// Matrices in 4 bits: each rank makes the blocks that it keeps from a matrix of floating-point numbers, or takes those
// that bitsandbytes made.

class QuantizedLoader {
 public:
  explicit QuantizedLoader(ModelRuntime& runtime);

  bool is_quantized(std::size_t param) const;
  /// This rank's codes, and its scales as far as it can know them alone.
  /// \param stored  where its parts are; null: `tensor` has the matrix itself
  /// \param hash    takes what is read; null: nobody asks
  /// \throws FormatError naming a matrix with elements that are not finite
  void read(std::size_t param, RowReader& reader, std::size_t tensor, const StoredNf4* stored, WeightHash* hash);
  /// Computes what the scales of a matrix share over all ranks. Collective; call it when everything has been read.
  void finish();

 private:
  void read_stored(std::size_t param, RowReader& reader, const StoredNf4& stored, WeightHash* hash);
  /// This rank's rows of the parameter `name`. \param rows  as many as it has
  void put(const std::string& name, const at::Tensor& rows);
  /// Its rows of what all ranks have whole.
  void put_own_rows(const std::string& name, const at::Tensor& whole);
  std::size_t param(const std::string& name) const { return numbers_.at(name); }

  ModelRuntime& runtime_;
  std::map<std::string, std::size_t> numbers_;
  std::map<std::size_t, at::Tensor> absmax_;  ///< by matrix: of this rank's blocks, until finish()
};

}  // namespace fsdp::detail

namespace fsdp {

/// \throws FormatError when the checkpoint holds adapters alone and a whole model is wanted, or the reverse
void require_kind(const Checkpoint& checkpoint, bool adapters_only);

/// Reads this rank's rows of every parameter, and with `optimizer` those of its state and the number of steps; then
/// publishes the weights. Collective: what the ranks read together is compared with the checkpoint's checksums, and all
/// fail together. A failure leaves weights and state partly filled and nothing published.
/// \param optimizer  null: parameters alone. State that the checkpoint has none of stays as it is
/// \return where its state was found
/// \throws FormatError naming file and tensor; a head that is not the token embedding it is tied to is refused too
OptimizerPlan load_checkpoint(ModelRuntime& runtime, Optimizer* optimizer, const Checkpoint& checkpoint);

/// Weights to start from, as Hugging Face stores them: DIR/model.safetensors or its index. (Of a GPT-2, whose matrices
/// are transposed, a buffer at a time.) Collective, as load_checkpoint(). Under adapters the runtime then knows its
/// base. Where DIR/config.json has fewer ids than the runtime's model, embedding and head get rows for the others.
void load_weights(ModelRuntime& runtime, const std::filesystem::path& directory, NewRows start = NewRows::mean);

/// Loads the base weights that the adapters of a checkpoint belong to. \throws FormatError when `base` holds others
void load_base(ModelRuntime& runtime, const BaseWeights& base, const std::filesystem::path& checkpoint);

/// Adapters as peft writes them: what plan_adapter() says of DIR. Collective, as load_checkpoint().
/// \return AdapterPlan::remarks
std::vector<std::string> load_adapter(ModelRuntime& runtime, const std::filesystem::path& directory);

}  // namespace fsdp
