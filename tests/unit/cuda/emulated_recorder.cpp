#include "tests/support/emulated_recorder.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/support/emulated_threads.hpp"

namespace fsdp::test {
namespace {

using Stack = std::vector<c10::IValue>;

thread_local int operators_left = -1;

bool writes(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

/// What such an operator returns: the tensors that it writes.
Stack written(const c10::FunctionSchema& schema, const Stack& arguments) {
  Stack out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() && out.size() < schema.returns().size()) out.push_back(arguments[i]);
  }
  return out;
}

bool is_view_of(const at::Tensor& x, const Stack& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& argument) {
    return argument.isTensor() && argument.toTensor().defined() && x.is_alias_of(argument.toTensor());
  });
}

void run_again(const c10::OperatorHandle& op, Stack arguments, const Stack& results) {
  op.callBoxed(arguments);
  for (std::size_t i = 0; i < results.size(); ++i) results[i].toTensor().copy_(arguments[i].toTensor());
}

/// Every operator of a thread that records.
void write_down(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericMode);
  const auto& schema = op.schema();
  if (operators_left == 0) throw std::runtime_error("this device records nothing");
  --operators_left;
  const bool gives_tensors =
      std::all_of(schema.returns().begin(), schema.returns().end(),
                  [](const c10::Argument& value) { return value.type()->isSubtypeOf(*c10::TensorType::get()); });
  if (!gives_tensors) throw std::runtime_error(schema.name() + " waits for the device while its work is recorded");
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  const Stack arguments(begin, stack->end());
  stack->erase(begin, stack->end());
  auto& tape = *emulated::tape;
  if (writes(schema)) {
    tape.push_back([op, arguments] { run_again(op, arguments, {}); });
    for (auto& value : written(schema, arguments)) stack->push_back(std::move(value));
    return;
  }
  Stack results = arguments;
  op.callBoxed(results);
  stack->insert(stack->end(), results.begin(), results.end());
  const bool computes = !schema.name().starts_with("aten::empty") && !is_view_of(results.front().toTensor(), arguments);
  // The memory stays in any case: kernels know it by its address.
  tape.push_back([computes, op, arguments, results] {
    if (computes) run_again(op, arguments, results);
  });
}

class Tape final : public RecordedWork {
 public:
  void run() override {
    for (const auto& step : steps) step();
  }
  emulated::Steps steps;
};

}  // namespace

std::unique_ptr<RecordedWork> EmulatedRecorder::record(const std::function<void()>& body) const {
  auto tape = std::make_unique<Tape>();
  operators_left = fails_;
  const emulated::TapeGuard guard(tape->steps);
  const c10::impl::IncludeDispatchKeyGuard all(c10::DispatchKey::TESTING_ONLY_GenericMode);
  body();
  return tape;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&write_down>());
}

}  // namespace fsdp::test
