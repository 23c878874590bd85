#pragma once
// Optimizer updates for the comparison of memory in operation_rooms.hpp.
#include "tests/support/operation_room.hpp"

namespace fsdp::test {

/// Returns a group with one parameter of 100 elements.
inline UpdateGroup update_group(const Inputs& in) { return {{in.floats(100)}, {in.floats(100)}, 1e-3, 0.1, 2.0, 1}; }

inline std::vector<OperationCase> update_cases() {
  return {{"adamw",
           [](const Ops& ops, const Inputs& in) {
             return [&ops, group = update_group(in), m = in.floats(100), v = in.floats(100)] {
               ops.adamw({group, {m}, {v}, 0.9, 0.99, 1e-8});
               return Kept{};
             };
           }},
          {"decided step",
           [](const Ops& ops, const Inputs& in) {
             return [&ops, group = update_group(in), m = in.floats(100), v = in.floats(100),
                     rows = in.vector(100)]() mutable {
               if (!ops.decides()) return Kept{};
               const GradPart part{group.grads[0], 100};
               const auto squares = ops.device_sum_squares({&part, 1});
               const auto loss = at::zeros({2}, squares.options());
               group.decision = ops.decide({squares, loss});
               group.published = {rows};
               ops.adamw({group, {m}, {v}, 0.9, 0.99, 1e-8});
               return Kept{};
             };
           }},
          {"anyprecision, lion, sgd", [](const Ops& ops, const Inputs& in) {
             return [&ops, group = update_group(in), m = in.floats(100), v = in.vector(100).to(at::kBFloat16)] {
               ops.any_precision({group, {m}, {v}, {v}, 0.9, 0.99, 1e-8});
               ops.lion({group, {m}, 0.9, 0.99});
               ops.sgd({group, {m}, 0.9, true});
               return Kept{};
             };
           }}};
}

}  // namespace fsdp::test
