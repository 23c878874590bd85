#include "lib/compute/ops/work_counter.hpp"

#include <algorithm>

namespace fsdp::detail {
namespace {

double bytes_in(const at::Tensor& x, std::size_t least = 1) {
  return x.defined() ? static_cast<double>(x.numel()) *
                           static_cast<double>(std::max(least, static_cast<std::size_t>(x.element_size())))
                     : 0.0;
}

/// Queries and keys of a sequence below the diagonal and inside the window.
double pairs_of(std::int64_t tokens, std::int64_t of_window) {
  const auto length = static_cast<double>(tokens);
  const auto window = of_window > 0 ? std::min(length, static_cast<double>(of_window)) : length;
  return window * (window + 1) / 2 + (length - window) * window;
}

}  // namespace

double bytes_of(std::initializer_list<const at::Tensor*> tensors, std::size_t least) {
  double bytes = 0;
  for (const auto* x : tensors) bytes += bytes_in(*x, least);
  return bytes;
}

double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const auto& x : tensors) bytes += bytes_in(x);
  return bytes;
}

WorkItem product_work(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  WorkItem work;
  work.kind = WorkItem::Kind::product;
  work.is_half = a.element_size() < 4;
  work.batch = a.dim() == 3 ? static_cast<double>(a.size(0)) : 1.0;
  work.m = static_cast<double>(a.size(-2));
  work.k = static_cast<double>(a.size(-1));
  work.n = static_cast<double>(b.size(-1));
  work.bytes = bytes_of({&a, &b, &out}) + (add ? bytes_in(out) : 0);
  return work;
}

WorkItem attention_work(const at::Tensor& qkv_NC, const AttentionShape& s, bool backward) {
  double pairs = 0;
  if (s.packing == nullptr) {
    pairs = static_cast<double>(s.rows) * pairs_of(s.query_length, s.window);
  } else {
    for (const auto& document : s.packing->documents) pairs += pairs_of(document.length, s.window);
  }
  WorkItem work;
  work.kind = WorkItem::Kind::attention;
  work.is_half = qkv_NC.element_size() < 4;
  const double forward = 4 * static_cast<double>(s.heads * s.head_size) * pairs;
  work.flops = backward ? 2.5 * forward : forward;
  work.bytes = bytes_in(qkv_NC) * (backward ? 3.5 : 1.5);
  return work;
}

double bytes_of_update(const UpdateGroup& group) {
  return 2 * bytes_of(group.params) + bytes_of(group.grads) + bytes_of(group.cast_params);
}

WorkCounter::Pass::~Pass() {
  if (!counter_.counts() || --counter_.depth_ > 0 || bytes_ <= 0) return;
  WorkItem work;
  work.bytes = bytes_;
  work.on_host = on_host_;
  counter_.add(work);
}

void WorkCounter::repeat(std::int64_t n, std::int64_t most, const std::function<void(std::int64_t)>& body) const {
  for (std::int64_t i = 0; i < std::min(n, most); ++i) {
    // This call stands for the calls that are skipped.
    const bool is_last = i + 1 == most && n > most + 1;
    log_->begin_repeat(is_last ? static_cast<double>(n - most) : 1.0);
    body(i);
    log_->end_repeat();
  }
  if (n > most) body(n - 1);
}

}  // namespace fsdp::detail
