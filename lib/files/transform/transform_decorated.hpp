#pragma once
// What all transforms share: a source whose tensors and values are those of another one, some of them changed.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lib/files/read/source.hpp"

namespace fsdp {

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
