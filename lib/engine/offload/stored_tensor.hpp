#pragma once
// What others have of a TensorStore.
#include <ATen/core/Tensor.h>

#include <utility>

#include "lib/engine/offload/tensor_store.hpp"

namespace fsdp {

/// Holds a group for as long as it lives.
class StoreHold {
 public:
  StoreHold(TensorStore& store, std::size_t group, Access access) : store_(&store), group_(group) {
    store.hold(group, access);
  }
  StoreHold(StoreHold&& other) noexcept : store_(std::exchange(other.store_, nullptr)), group_(other.group_) {}
  StoreHold& operator=(StoreHold&&) = delete;
  StoreHold(const StoreHold&) = delete;
  StoreHold& operator=(const StoreHold&) = delete;
  ~StoreHold() {
    if (store_ != nullptr) store_->release(group_);
  }

 private:
  TensorStore* store_;
  std::size_t group_;
};

/// A tensor that is in memory for good, or in a store, and in memory while its group is held.
class StoredTensor {
 public:
  StoredTensor() = default;
  StoredTensor(at::Tensor values) : values_(std::move(values)) {}  // NOLINT: a tensor is one
  StoredTensor(const TensorStore& store, StorePlace place) : store_(&store), place_(place) {}

  at::Tensor get() const { return store_ == nullptr ? values_ : store_->tensor(place_); }
  at::ScalarType dtype() const { return store_ == nullptr ? values_.scalar_type() : store_->dtype(place_); }
  at::IntArrayRef sizes() const { return store_ == nullptr ? values_.sizes() : at::IntArrayRef(store_->sizes(place_)); }
  /// Null: it is in memory for good.
  const TensorStore* store() const { return store_; }
  const StorePlace& place() const { return place_; }

 private:
  at::Tensor values_;
  const TensorStore* store_ = nullptr;
  StorePlace place_;
};

}  // namespace fsdp
