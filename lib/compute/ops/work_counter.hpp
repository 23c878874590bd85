#pragma once
// The work of operations, for the speed model of predictions: products with their sizes, passes with the bytes that
// they read and write. In a run nothing is counted.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/types/work.hpp"
#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/ops/updates/optimizer_updates.hpp"

namespace fsdp::detail {

/// Bytes of all defined tensors; an element smaller than `least` bytes counts as `least`.
double bytes_of(std::initializer_list<const at::Tensor*> tensors, std::size_t least = 1);
double bytes_of(const std::vector<at::Tensor>& tensors);
/// The work of out (+)= a @ b.
WorkItem product_work(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add);
/// The work of causal attention: two operations per multiply-add inside the window, and the bytes read and written.
WorkItem attention_work(const at::Tensor& qkv_NC, const AttentionShape& shape, bool backward);
/// Bytes that an optimizer update reads and writes, without states.
double bytes_of_update(const UpdateGroup& group);

/// Adds one pass over memory to the log for each outermost operation: an operation that is called by another one is
/// part of it, except that products are always counted.
class WorkCounter {
 public:
  /// Counts nothing.
  WorkCounter() = default;
  /// \param least_bytes  bytes that an element of a pass over rows counts at least: 4 on a CPU, which computes in
  ///                     float32 whatever the dtype and is limited by that rather than by memory
  WorkCounter(std::shared_ptr<WorkLog> log, std::size_t least_bytes)
      : log_(std::move(log)), least_bytes_(least_bytes) {}

  bool counts() const { return log_ != nullptr; }
  WorkLog& log() const { return *log_; }
  const std::shared_ptr<WorkLog>& shared_log() const { return log_; }
  void add(const WorkItem& work) const {
    if (counts()) log_->add(work);
  }

  /// Adds its bytes to the log at destruction, unless it is nested in another one.
  class Pass {
   public:
    Pass(const WorkCounter& counter, double bytes, bool on_host) : counter_(counter), bytes_(bytes), on_host_(on_host) {
      if (counter_.counts()) ++counter_.depth_;  // several threads may share operations that count nothing
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    void touch(double times, std::initializer_list<const at::Tensor*> tensors) {
      bytes_ += times * counter_.bytes(tensors);
    }
    ~Pass();

   private:
    const WorkCounter& counter_;
    double bytes_;
    bool on_host_;
  };
  /// A pass over rows: `times` the bytes of the tensors.
  Pass rows(double times, std::initializer_list<const at::Tensor*> tensors) const {
    return {*this, times * bytes(tensors), false};
  }
  Pass pass(double num_bytes, bool on_host = false) const { return {*this, num_bytes, on_host}; }
  /// Bytes of rows; 0 where nothing is counted.
  double bytes(std::initializer_list<const at::Tensor*> tensors) const {
    return counts() ? bytes_of(tensors, least_bytes_) : 0.0;
  }

  /// Runs at most `most` of n equal calls of body(), and the last one; the log counts all n.
  void repeat(std::int64_t n, std::int64_t most, const std::function<void(std::int64_t)>& body) const;

 private:
  std::shared_ptr<WorkLog> log_;
  std::size_t least_bytes_ = 1;
  mutable int depth_ = 0;
};

}  // namespace fsdp::detail
