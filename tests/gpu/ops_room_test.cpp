// Compares the memory of MetaCudaOps with PyTorch's own operators on the stub driver, operation by operation: peak and
// remaining bytes, exactly.
#include "tests/support/torch_doctest.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdlib>
#include <utility>

#include "lib/compute/ops/attention/query_blocks.hpp"
#include "tests/gpu/gpu_support.hpp"
#include "tests/support/operation_rooms.hpp"
#include "tests/support/packed_rows.hpp"

namespace fsdp::test {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

Room real_room(const Operation& operation, at::ScalarType dtype) {
  const auto ops = cuda_backend()->make_ops(0);
  const auto run = operation(*ops, {at::TensorOptions(dtype).device(at::kCUDA)});
  (void)run();
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  const auto before = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  const auto kept = run();
  const auto after = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  return {after.allocation[kAll].allocated - before.allocation[kAll].allocated,
          after.requested_bytes[kAll].peak - before.requested_bytes[kAll].current,
          after.requested_bytes[kAll].current - before.requested_bytes[kAll].current};
}

Room meta_room(const Operation& operation, at::ScalarType dtype) {
  const MemoryRecorder recorder(true);
  const char* card = std::getenv("FSDP_STUB_GPU");
  const auto ops =
      make_meta_cuda_ops(recorder.tape(), std::make_shared<WorkLog>(), find_gpu(card == nullptr ? "a100-80g" : card));
  return meta_room(operation, dtype, recorder, *ops);
}

/// Inputs for meta operations, which do not read these tensors' values.
std::shared_ptr<const Packing> on_card(const Packing& packing) {
  auto there = std::make_shared<Packing>(packing);
  there->positions_N = packing.positions_N.to(at::kCUDA);
  there->starts = packing.starts.to(at::kCUDA);
  return there;
}

Operation rotary_attention(const AttentionShape& shape) {
  return [shape](const Ops& ops, const Inputs& in) {
    return [&ops, shape, qkv = in.matrix(shape.rows * shape.query_length, shape.packed_width()),
            grad = in.matrix(shape.rows * shape.query_length, shape.heads * shape.head_size),
            table = RopeTable{
                in.floats(shape.query_length * shape.head_size / 2).view({shape.query_length, shape.head_size / 2}),
                in.floats(shape.query_length * shape.head_size / 2).view({shape.query_length, shape.head_size / 2})}] {
      std::unique_ptr<AttentionState> state;
      auto out = ops.attention(qkv, shape, &state);
      const auto positions = shape.packing != nullptr ? shape.packing->positions_N : at::Tensor();
      auto grad_qkv = ops.rotary_attention_backward(grad, qkv, out, shape, std::move(state),
                                                    {table, {shape.query_length, 0, positions}});
      return Kept{out, grad_qkv};
    };
  };
}

/// Returns a product with an adapter, forward and backward to its factors, and the row norms of weight plus adapter.
Operation adapter(std::int64_t tokens, std::int64_t rows, std::int64_t columns) {
  return [=, rank = std::int64_t{8}](const Ops& ops, const Inputs& in) {
    return
        [&ops, rank, rows, x = in.matrix(tokens, columns), w = in.matrix(rows, columns), a = in.floats(rank * columns),
         b = in.floats(rows * rank), m = in.floats(rows), grad = in.matrix(tokens, rows)] {
          const auto a_RI = a.view({rank, -1}), b_OR = b.view({-1, rank});
          auto out = ops.linear(x, w);
          const auto h = ops.lora_down(x, a_RI.t(), 2.0);
          ops.lora_up(out, h, b_OR.t());
          const auto norms_O = ops.lora_row_norms(w, b_OR, a_RI, 2.0);
          out.mul_(m / norms_O);
          GradSlot sum{at::empty({rows}, m.options())};
          ops.bias_grad(&sum, grad.to(at::kFloat) * out);
          const auto scaled = (grad * (m / norms_O)).to(grad.scalar_type());
          return Kept{out, h, norms_O, sum.grad.div_(norms_O), scaled};
        };
  };
}

}  // namespace

TEST_SUITE("gpu/operations") {
  TEST_CASE("every operation takes as much memory as PyTorch's own") {
    auto cases = operation_cases();
    AttentionShape dropped{2, 24, 4, 16, 2, 0.1, {at::zeros({2}, at::kLong), 3}};
    cases.push_back({"flash attention", attention({2, 256, 4, 64})});
    cases.push_back({"flash attention with shared heads", attention({2, 200, 4, 64, 2})});
    cases.push_back({"attention by its formula, with dropout and shared heads", attention(dropped)});
    cases.push_back({"attention of turned heads", rotary_attention({4, 128, 4, 64})});
    cases.push_back({"attention of turned heads that are shared", rotary_attention({2, 128, 4, 64, 2})});
    cases.push_back({"attention of a large layer", rotary_attention({4, 512, 32, 128})});
    cases.push_back({"adapters", adapter(96, 80, 128)});
    cases.push_back({"adapters of a large layer", adapter(1024, 4096, 11008)});
    for (const std::int64_t kv_heads : {4, 2}) {
      AttentionShape slides{2, 600, 4, 64, kv_heads}, capped{3, 300, 4, 64, kv_heads}, many{5, 700, 4, 256, kv_heads};
      slides.window = 100;
      capped.softcap = 50;
      cases.push_back({"attention with a window", rotary_attention(slides)});
      cases.push_back({"attention with capped scores", rotary_attention(capped)});
      slides.softcap = 50;
      cases.push_back({"attention with a window and capped scores", attention(slides)});
      many.rows = sequences_at_once(many) * 2 + 1;  // leaves a last block of one sequence
      many.softcap = 30;
      cases.push_back({"attention of more sequences than are taken at once", attention(many)});
      cases.push_back({"attention of heads that no kernel of PyTorch's takes", attention({2, 300, 4, 20, kv_heads})});
    }
    const auto packing = on_card(*packed({{100, 28, 60}, {150}}, 200));
    for (const std::int64_t kv_heads : {4, 2}) {
      AttentionShape shape{2, 200, 4, 64, kv_heads};
      shape.packing = packing.get();
      cases.push_back({"attention of documents that share rows", attention(shape)});
      cases.push_back({"attention of turned heads of such documents", rotary_attention(shape)});
      shape.window = 40;
      cases.push_back({"attention of such documents with a window", attention(shape)});
      shape.softcap = 20;
      cases.push_back({"attention of such documents with capped scores", attention(shape)});
    }
    for (const auto& [name, operation] : cases) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        CAPTURE(name);
        CAPTURE(dtype);
        const auto meta = meta_room(operation, dtype), real = real_room(operation, dtype);
        CHECK(meta.peak_bytes == real.peak_bytes);
        CHECK(meta.kept_bytes == real.kept_bytes);
      }
    }
  }
}

}  // namespace fsdp::test
