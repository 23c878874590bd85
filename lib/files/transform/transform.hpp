#pragma once
// What changes on the way from source to target. Each function decorates a source and stays lazy: no tensor is read.
// What all transforms share: a source whose tensors and values are those of another one, some of them changed.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

struct SelectOptions {
  std::vector<std::string> include;  ///< glob patterns over names ('*' any characters, '?' one); none: everything
  std::vector<std::string> exclude;  ///< wins over include
  /// sed-like "REGEX=REPLACEMENT" (ECMAScript, $1..$9), applied in order to every name. A renamed tensor's path is its
  /// new name as one element below the unchanged first elements where the pattern matched only the rest.
  std::vector<std::pair<std::string, std::string>> rename;
  /// Drop optimizer, scheduler and counters; the model's tensors lose their "model." or "model_state." where all have
  /// it. Patterns match against the names before that, renaming sees those after it.
  bool model_only = false;
};

/// \throws UsageError on a bad pattern, on two tensors that get one name, and when nothing is left
std::unique_ptr<Source> select(std::shared_ptr<const Source> source, const SelectOptions& options);

/// Floating-point model tensors in another dtype (optimizer state and integers stay). \throws UsageError on a pair of
/// dtypes that is no conversion between floating-point types
std::unique_ptr<Source> cast(std::shared_ptr<const Source> source, DType dtype);

/// Maps between our (PyTorch) names and those of Hugging Face's transformers. A Llama has the same names here and
/// there: its maps check them, complete a bare LlamaModel's to "model.*" and drop buffers that older versions stored;
/// llama_to_hf also reads Meta's original names (layers.0.attention.wq.weight), hf_to_meta writes them.
enum class NameMap { none, mingpt_to_gpt2, gpt2_to_mingpt, llama_to_hf, hf_to_llama, hf_to_meta };

/// Renames the model's tensors, whatever nesting they have stays in front; what is laid out differently changes on the
/// way: GPT-2's Conv1D matrices are transposed, Meta's queries and keys have the halves of each rotary pair side by
/// side.
/// \param config  numbers of heads, for Meta's names; null: source->model_config()
/// \throws UsageError naming the first tensor that the map does not know, or an optimizer's: maps are for the model
/// only
std::unique_ptr<Source> map_names(std::shared_ptr<const Source> source, NameMap map,
                                  const ModelConfig* config = nullptr);

/// Complex tensors as real ones with a last dim of 2, named "<name>@view_as_real": what safetensors can hold.
std::unique_ptr<Source> view_complex_as_real(std::shared_ptr<const Source> source);

/// Everything passes through to `inner_`; derived classes fill tensors_ and values_ and the lists of what they come
/// from.
class DecoratedSource : public Source {
 public:
  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    return inner_->read(inner_tensor_.at(tensor), first, count, out, sums);
  }
  bool prefers_whole(std::size_t tensor) const override { return inner_->prefers_whole(inner_tensor_.at(tensor)); }
  LoadedValue value(std::size_t value) const override { return inner_->value(inner_value_.at(value)); }
  std::vector<ReadSum> verify_sums(std::vector<ReadSum> sums) const override {
    return inner_->verify_sums(std::move(sums));
  }

 protected:
  explicit DecoratedSource(std::shared_ptr<const Source> inner) : inner_(std::move(inner)) { info_ = inner_->info(); }

  void add_tensor(std::size_t inner, SourceTensor tensor) {
    inner_tensor_.push_back(inner);
    tensors_.push_back(std::move(tensor));
  }
  void add_value(std::size_t inner, SourceValue value) {
    inner_value_.push_back(inner);
    values_.push_back(std::move(value));
  }
  void add_all_values() {
    for (std::size_t i = 0; i < inner_->values().size(); ++i) add_value(i, inner_->values()[i]);
  }

  std::shared_ptr<const Source> inner_;
  std::vector<std::size_t> inner_tensor_, inner_value_;  ///< by number here, the number in inner_
};

/// \throws UsageError unless [first, first + count) lies inside `tensor` and `out` has exactly its bytes
void check_read(const SourceTensor& tensor, std::uint64_t first, std::uint64_t count, std::size_t out_bytes);

/// \throws UsageError naming two tensors or values of `source` that have one name
void check_unique_names(const Source& source);

}  // namespace fsdp
