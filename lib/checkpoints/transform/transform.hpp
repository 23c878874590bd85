#pragma once
// Transforms between source and target. Each function decorates a source and is lazy: no tensor is read.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

struct SelectOptions {
  std::vector<std::string> include = {};  ///< glob patterns for names ('*' any characters, '?' one); empty: everything
  std::vector<std::string> exclude = {};  ///< takes precedence over include
  /// Replacements like those of sed, (REGEX, REPLACEMENT) in ECMAScript syntax with $1..$9, applied in order to every
  /// name. The path of a renamed tensor is its new name as one element, after the unchanged first elements when the
  /// pattern matched only the rest.
  std::vector<std::pair<std::string, std::string>> rename = {};
  /// Drops optimizer, scheduler and counters; the tensors of the model lose the prefix "model." or "model_state." when
  /// all have it. Patterns match the names before that, renaming sees the names after it.
  bool model_only = false;
  bool must_match = false;  ///< each pattern matches a name

  bool has_patterns() const { return !include.empty() || !exclude.empty() || !rename.empty(); }
  bool changes_anything() const { return has_patterns() || model_only; }
};

/// \throws RequestError on an invalid pattern, on one that has to match a name and matches none, on two tensors that
/// get one name, and when nothing is left
std::unique_ptr<Source> select(std::shared_ptr<const Source> source, const SelectOptions& options);

/// Converts the floating-point tensors of the model to another dtype; optimizer state and integers stay as they are.
/// \throws RequestError when a conversion between the types does not exist
std::unique_ptr<Source> cast(std::shared_ptr<const Source> source, DType dtype);

/// Presents complex tensors as real ones with a last dim of 2, named "<name>@view_as_real", which safetensors can hold.
std::unique_ptr<Source> view_complex_as_real(std::shared_ptr<const Source> source);

/// The base of transforms: a source whose tensors and values come from `inner_`. Derived classes fill tensors_ and
/// values_ and the numbers of their origins.
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
  std::vector<std::size_t> inner_tensor_, inner_value_;  ///< by tensor or value number, the number in inner_
};

/// \throws std::invalid_argument unless [first, first + count) lies inside `tensor` and `out` has exactly its bytes
void check_read(const SourceTensor& tensor, std::uint64_t first, std::uint64_t count, std::size_t out_bytes);

/// \throws RequestError naming two tensors or values of `source` that have one name
void check_unique_names(const Source& source);

}  // namespace fsdp
