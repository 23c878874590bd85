#pragma once
// Ops that record their work for the speed model: products with their sizes, passes with the bytes that they read and
// write; internal to lib/compute/meta.
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/work.hpp"
#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/optimizer_updates.hpp"

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

/// Adds a WorkItem to the log for each outermost operation of Base. An operation that is called by another one is part
/// of it, except that products are always counted.
/// \tparam kLeastBytes  bytes that an element of a pass counts at least: 4 on the CPU, which computes in float32
/// whatever
///                      the dtype and is limited by that rather than by memory
template <typename Base, std::size_t kLeastBytes>
class CountedOps : public Base {
 public:
  template <typename... Args>
  explicit CountedOps(std::shared_ptr<WorkLog> log, Args&&... args)
      : Base(std::forward<Args>(args)...), log_(std::move(log)) {}

  double sum_squares(std::span<const GradPart> parts) const override {
    Pass pass(*this, 0);
    for (const auto& part : parts) pass.touch(bytes_of({&part.grad}));
    return Base::sum_squares(parts);
  }
  /// Rows that come from the host are rounded there while earlier ones are sent.
  void cast_shards(std::span<const CastShard> rows) const override {
    double here = 0, sent = 0, rounded = 0;
    for (const auto& [to, from] : rows) {
      const bool apart = this->is_on_host(from) && !this->is_on_host(to);
      (apart ? rounded : here) += bytes_of({&to, &from});
      if (apart) sent += bytes_of({&to});
    }
    if (sent > 0) {
      const int copy = log_->start({.kind = TransferWork::Kind::to_host, .bytes = sent});
      const Pass pass(*this, rounded, true);
      log_->wait(copy);
    }
    const Pass pass(*this, here);
    Base::cast_shards(rows);
  }
  void sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources, at::ScalarType dtype,
                   bool accumulate) const override {
    const auto elements = static_cast<double>(n);
    const auto read = elements * static_cast<double>(c10::elementSize(dtype) * sources.size());
    const Pass pass(*this, read + elements * (accumulate ? 8 : 4));
    Base::sum_sources(out, n, sources, dtype, accumulate);
  }
  void update(const ElementwiseUpdate& update) const override {
    double bytes = bytes_of_update(update);
    for (const auto& state : update.states) bytes += 2 * bytes_of(state);
    const Pass pass(*this, bytes, this->is_on_host(update.params.front()));
    Base::update(update);
  }
  void blockwise(const BlockwiseUpdate& update) const override {
    const Pass pass(*this,
                    bytes_of({&update.param, &update.param, &update.grad, &update.first.codes, &update.first.codes,
                              &update.second.codes, &update.second.codes}),
                    this->is_on_host(update.param));
    Base::blockwise(update);
  }
  void adafactor_statistics(const AdafactorUpdate& update) const override {
    const Pass pass(*this, bytes_of({&update.grad, &update.param}), this->is_on_host(update.param));
    Base::adafactor_statistics(update);
  }
  void adafactor_update_size(const AdafactorUpdate& update) const override {
    const Pass pass(*this, bytes_of({&update.grad}), this->is_on_host(update.param));
    Base::adafactor_update_size(update);
  }
  void adafactor_apply(const AdafactorUpdate& update) const override {
    const Pass pass(*this, bytes_of({&update.grad, &update.param, &update.param}), this->is_on_host(update.param));
    Base::adafactor_apply(update);
  }
  Fp8Matrix fp8_cast(const at::Tensor& x_RC, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                     Fp8Matrix made) const override {
    const double codes = sides == Fp8Sides::both ? 2 : 1;
    const Pass pass(*this, 2 * size_of({&x_RC}) +
                               codes * static_cast<double>(
                                           x_RC.numel()));  // x is read twice: for its largest value and for the codes
    return Base::fp8_cast(x_RC, largest, format, sides, std::move(made));
  }
  at::Tensor fp8_columns(const at::Tensor& rows_RC) const override {
    const Pass pass(*this, 2 * static_cast<double>(rows_RC.numel()));
    return Base::fp8_columns(rows_RC);
  }
  at::Tensor embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                   TokenPositions place) const override {
    Pass pass(*this, 0);
    auto out = Base::embed(token_VD, position_PD, ids_N, place);
    pass.touch((position_PD.defined() ? 3 : 2) * size_of({&out}));
    return out;
  }
  void embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                      const at::Tensor& ids_N, const TokenPositions& place) const override {
    const Pass pass(*this, 3 * size_of({&grad_ND}) + (grad_token_VD != nullptr ? size_of({grad_token_VD}) : 0));
    Base::embed_backward(grad_token_VD, grad_position_PD, grad_ND, ids_N, place);
  }
  NormResult add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                            const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const override {
    const Pass pass(*this, size_of({&x_ND, &x_ND, &y_ND, &y_ND}));
    return Base::add_layer_norm(x_ND, y_ND, y_bias_D, gamma_D, beta_D, eps);
  }
  NormResult add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                          const at::Tensor& gamma_D, const RmsNorm& kind) const override {
    const Pass pass(*this, size_of({&x_ND, &x_ND, &y_ND, &y_ND}));
    return Base::add_rms_norm(x_ND, y_ND, y_bias_D, gamma_D, kind);
  }
  at::Tensor layer_norm_backward(const NormBackward& norm, const NormGrads& grads,
                                 const NormAgain* again = nullptr) const override {
    const Pass pass(*this, bytes_of_backward(norm, again));
    return Base::layer_norm_backward(norm, grads, again);
  }
  at::Tensor rms_norm_backward(const NormBackward& norm, const NormGrads& grads,
                               const NormAgain* again = nullptr) const override {
    const Pass pass(*this, bytes_of_backward(norm, again));
    return Base::rms_norm_backward(norm, grads, again);
  }
  void fill_rows(at::Tensor& out_NO, const at::Tensor& bias_O) const override {
    const Pass pass(*this, size_of({&out_NO}));
    Base::fill_rows(out_NO, bias_O);
  }
  at::Tensor exact_gelu(const at::Tensor& pre_NF) const override {
    const Pass pass(*this, 2 * size_of({&pre_NF}));
    return Base::exact_gelu(pre_NF);
  }
  at::Tensor exact_gelu_backward(const at::Tensor& grad_NF, const at::Tensor& pre_NF) const override {
    const Pass pass(*this, 3 * size_of({&pre_NF}));
    return Base::exact_gelu_backward(grad_NF, pre_NF);
  }
  at::Tensor bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const override {
    const Pass pass(*this, 3 * size_of({&pre_NF}));
    return Base::bias_gelu(pre_NF, bias_F);
  }
  void bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                          at::Tensor* again_NF = nullptr) const override {
    const Pass pass(*this, (again_NF != nullptr ? 4 : 3) * size_of({&pre_NF}));
    Base::bias_gelu_backward(grad_NF, pre_NF, grad_bias_F, again_NF);
  }
  at::Tensor gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const override {
    const Pass pass(*this, 3 * size_of({&up_NF}));
    return Base::gated(gate, gate_NF, up_NF);
  }
  void gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) const override {
    const Pass pass(*this, 6 * size_of({&up_NF}));
    Base::gated_backward(gate, grad_NF, gate_NF, up_NF);
  }
  void add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const override {
    const Pass pass(*this, size_of({&x_ND, &x_ND, &y_ND}));
    Base::add_bias(x_ND, y_ND, bias_D);
  }
  void bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const override {
    const Pass pass(*this, slot != nullptr ? size_of({&grad_ND}) : 0);
    Base::bias_grad(slot, grad_ND);
  }
  void dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const override {
    const Pass pass(*this, 2 * size_of({&x_ND}));
    Base::dropout(x_ND, keys_N, probability);
  }
  void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
            const TokenPositions& place, bool inverse) const override {
    const Pass pass(*this,
                    2 * size_of({&x_NC}) * static_cast<double>(heads * head_size) / static_cast<double>(x_NC.size(1)));
    Base::rope(x_NC, heads, head_size, table, place, inverse);
  }
  void cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                     const GradScale& grad_scale) const override {
    const Pass pass(*this, 3 * size_of({&logits_NV}));
    Base::cross_entropy(sums, logits_NV, targets, vocab, grad_scale);
  }

 protected:
  const std::shared_ptr<WorkLog>& work() const { return log_; }
  void count(const WorkItem& work) const { log_->add(work); }
  void count_adamw(const AdamWUpdate& update) const {
    WorkItem work;
    work.bytes = bytes_of_update(update) + 2 * bytes_of(update.exp_avg) + 2 * bytes_of(update.exp_avg_sq);
    work.on_host = this->is_on_host(update.params.front());
    count(work);
  }
  /// Runs at most `most` of n equal calls of body(), and the last one; the log counts all n.
  void repeat_counted(std::int64_t n, std::int64_t most, const std::function<void(std::int64_t)>& body) const {
    for (std::int64_t i = 0; i < std::min(n, most); ++i) {
      // This call stands for the calls that are skipped.
      const bool is_last = i + 1 == most && n > most + 1;
      log_->begin_repeat(is_last ? static_cast<double>(n - most) : 1.0);
      body(i);
      log_->end_repeat();
    }
    if (n > most) body(n - 1);
  }

 private:
  /// Logs one pass at destruction, unless it is nested in another one.
  class Pass {
   public:
    Pass(const CountedOps& ops, double bytes, bool on_host = false) : ops_(ops), bytes_(bytes), on_host_(on_host) {
      ++ops_.depth_;
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    void touch(double bytes) { bytes_ += bytes; }
    ~Pass() {
      if (--ops_.depth_ > 0 || bytes_ <= 0) return;
      WorkItem work;
      work.bytes = bytes_;
      work.on_host = on_host_;
      ops_.log_->add(work);
    }

   private:
    const CountedOps& ops_;
    double bytes_;
    bool on_host_;
  };

  static double size_of(std::initializer_list<const at::Tensor*> tensors) { return bytes_of(tensors, kLeastBytes); }
  static double bytes_of_backward(const NormBackward& norm, const NormAgain* again) {
    return (again != nullptr ? 4 : 3) * size_of({&norm.grad_ND}) + size_of({&norm.residual_ND});
  }

  std::shared_ptr<WorkLog> log_;
  mutable int depth_ = 0;
};

}  // namespace fsdp::detail
