#pragma once
// Optimizer updates for the comparison of memory in operation_rooms.hpp.
#include "lib/engine/optim/optimizer.hpp"
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
               group.cast_params = {rows};
               ops.adamw({group, {m}, {v}, 0.9, 0.99, 1e-8});
               return Kept{};
             };
           }},
          {"anyprecision, lion, sgd", [](const Ops& ops, const Inputs& in) {
             std::vector<std::shared_ptr<Optimizer>> optimizers;
             for (const char* kind : {"anyprecision", "lion", "sgd"}) {
               OptimizerOptions options;
               options.kind = kind;
               options.momentum = 0.9;
               options.nesterov = options.kahan = true;
               optimizers.push_back(make_optimizer({ops, {whole_param(in.floats(100))}, options}));
             }
             return [optimizers, gradient = in.floats(100)] {
               for (const auto& optimizer : optimizers) optimizer->step({gradient}, 1e-3, 2.0);
               return Kept{};
             };
           }}};
}

}  // namespace fsdp::test
