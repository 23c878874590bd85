// Compares allocations of MetaCpuOps with those of CpuOps: their number, peak and remaining bytes, exactly.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "tests/support/operation_rooms.hpp"
#include "tests/support/packed_rows.hpp"

namespace fsdp::test {
namespace {

Room real_room(const Operation& operation, at::ScalarType dtype) {
  const auto run = operation(host_ops(), {at::TensorOptions(dtype).device(at::kCPU)});
  (void)run();  // allocations that are made only once
  reset_host_memory_peak();
  const auto before = host_memory_stats();
  const auto kept = run();
  const auto after = host_memory_stats();
  return {after.allocations - before.allocations, after.peak_bytes - before.current_bytes,
          after.current_bytes - before.current_bytes};
}

Room meta_room(const Operation& operation, at::ScalarType dtype) {
  const MemoryRecorder recorder(false);
  const auto ops = make_meta_cpu_ops(recorder.tape(), std::make_shared<WorkLog>(), at::get_num_threads());
  return meta_room(operation, dtype, recorder, *ops);
}

void check(const std::string& name, const Operation& operation) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(name);
    CAPTURE(dtype);
    CHECK(meta_room(operation, dtype) == real_room(operation, dtype));
  }
}

/// Without MKL, as on AArch64, ATen multiplies the matrices of a batch one by one on copies. The prediction ignores
/// the copies, which are a few rows of one head at a time.
void check_batches(const std::string& name, const Operation& operation) {
#if defined(__aarch64__)
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    CAPTURE(name);
    CAPTURE(dtype);
    const auto meta = meta_room(operation, dtype), real = real_room(operation, dtype);
    CHECK(meta.kept_bytes == real.kept_bytes);
    CHECK(static_cast<double>(meta.peak_bytes) == doctest::Approx(static_cast<double>(real.peak_bytes)).epsilon(0.03));
  }
#else
  check(name, operation);
#endif
}

}  // namespace

TEST_SUITE("memory/meta_ops") {
  TEST_CASE("every operation takes as much memory as the real one") {
    install_host_allocator();
    for (const auto& [name, operation] : operation_cases()) check(name, operation);
    check_batches("attention of short rows", attention({3, 40, 4, 16}));
    check_batches("attention of short rows with shared heads", attention({3, 40, 4, 16, 2}));
  }

  TEST_CASE("attention of packed documents") {
    install_host_allocator();
    const auto packing = packed({{7, 20, 5}, {40}}, 40);
    AttentionShape shape{2, 40, 4, 16, 2};
    shape.packing = packing.get();
    // For the smallest 16-bit products fewer operands are packed than predicted; the peak is the same.
    const auto check_bytes = [](const AttentionShape& s) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        INFO("window ", s.window, ", dropout ", s.dropout, ", ", std::string(c10::toString(dtype)));
        const auto meta = meta_room(attention(s), dtype), real = real_room(attention(s), dtype);
        CHECK(meta.peak_bytes == real.peak_bytes);
        CHECK(meta.kept_bytes == real.kept_bytes);
      }
    };
    check_bytes(shape);
    shape.window = 8;
    check_bytes(shape);
    shape.window = 0;
    shape.dropout = 0.1;
    shape.dropout_place = {at::zeros({2}, at::kLong), 3};
    check_bytes(shape);
    shape.dropout = 0;
    const auto sharing = packed_sharing({{20, {8, 15}, 5}, {30, {10, 3}}}, 40);
    shape.packing = sharing.get();
    check_bytes(shape);
  }

  TEST_CASE("attention of long rows: ATen's threads need memory for their own products, here 7 % of the total") {
    install_host_allocator();
    for (const AttentionShape& shape : {AttentionShape{2, 600, 2, 32}, AttentionShape{1, 600, 4, 32, 2}}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const auto meta = meta_room(attention(shape), dtype), real = real_room(attention(shape), dtype);
        CHECK(meta.kept_bytes == real.kept_bytes);
        CHECK(static_cast<double>(meta.peak_bytes) ==
              doctest::Approx(static_cast<double>(real.peak_bytes)).epsilon(0.08));
      }
    }
  }
}

}  // namespace fsdp::test
