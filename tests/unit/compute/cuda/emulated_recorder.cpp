#include "tests/support/emulated_recorder.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
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

/// Returns the results of an operator that writes: the tensors that it writes.
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

/// Memory of one result. The recording keeps it, because kernels know its address.
struct Room {
  at::Tensor memory;
  std::shared_ptr<const bool> is_recording;
  bool dropped_later = false;  ///< released after the recording had ended

  /// Overwrites the memory, as if a device's allocator had given it to another owner.
  void spoil() const {
    constexpr int kNan = 0xff, kWild = 0x7f;  // all bits of a float; an invalid index
    const auto type = memory.scalar_type();
    if (memory.storage().nbytes() == 0) return;
    const int byte = type == at::kBool ? 1 : at::isIntegralType(type, false) && type != at::kByte ? kWild : kNan;
    std::memset(memory.storage().mutable_data(), byte, memory.storage().nbytes());
  }
};
using SharedRoom = std::shared_ptr<Room>;

/// Called when the body has released the memory: it is overwritten at this point of each replay, or, if the recording
/// has ended, at once and after each replay.
void drop(void* context) {
  const std::unique_ptr<SharedRoom> held(static_cast<SharedRoom*>(context));
  const auto& room = *held;
  if (*room->is_recording) {
    emulated::tape->push_back([room] { room->spoil(); });
    return;
  }
  room->dropped_later = true;
  room->spoil();
}

at::Tensor on_storage(c10::intrusive_ptr<c10::StorageImpl> storage, const at::Tensor& like) {
  return at::empty({0}, like.options())
      .set_(c10::Storage(std::move(storage)), like.storage_offset(), like.sizes(), like.strides());
}

c10::intrusive_ptr<c10::StorageImpl> storage_at(const c10::Storage& there, void* context, c10::DeleterFnPtr end) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), there.nbytes(),
                                               c10::DataPtr(there.mutable_data(), context, end, at::kCPU), nullptr,
                                               /*resizable=*/false);
}

class Tape final : public RecordedWork {
 public:
  void run() override {
    for (const auto& storage : outside_) {
      if (storage.expired()) throw std::logic_error("recorded work uses memory that was given back");
    }
    const c10::impl::ExcludeDispatchKeyGuard as_one(c10::DispatchKey::TESTING_ONLY_GenericMode);
    for (const auto& step : steps) step();
    for (const auto& room : rooms_) {
      if (room->dropped_later) room->spoil();
    }
  }
  void end() { *is_recording_ = false; }

  /// Returns a tensor for the body; the recording keeps its memory.
  at::Tensor lend(const at::Tensor& result, bool is_new) {
    auto room = std::make_shared<Room>(Room{result, is_recording_});
    if (is_new) room->spoil();
    rooms_.push_back(room);
    return on_storage(storage_at(result.storage(), new SharedRoom(std::move(room)), &drop), result);
  }

  /// Returns the value on the same memory without keeping it alive as the body does. Tensors from before the recording
  /// belong to their owners.
  c10::IValue for_replay(const c10::IValue& value) {
    if (value.isTensor()) return for_replay(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(for_replay(tensor));
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const auto& tensor : value.toOptionalTensorVector())
        tensors.push_back(tensor ? std::optional(for_replay(*tensor)) : std::nullopt);
      return tensors;
    }
    return value;
  }

  emulated::Steps steps;

 private:
  at::Tensor for_replay(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
    const auto& data = tensor.storage().data_ptr();
    if (data.get_deleter() == &drop) {
      const auto& room = *static_cast<SharedRoom*>(data.get_context());
      return on_storage(room->memory.storage().getWeakStorageImpl().lock(), tensor);
    }
    outside_.push_back(tensor.storage().getWeakStorageImpl());
    return on_storage(storage_at(tensor.storage(), nullptr, &c10::detail::deleteNothing), tensor);
  }

  std::shared_ptr<bool> is_recording_ = std::make_shared<bool>(true);
  std::vector<SharedRoom> rooms_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> outside_;
};

thread_local Tape* recording = nullptr;

void run_again(const c10::OperatorHandle& op, Stack arguments, const Stack& results) {
  op.callBoxed(arguments);
  for (std::size_t i = 0; i < results.size(); ++i) results[i].toTensor().copy_(arguments[i].toTensor());
}

/// Handles every operator of a recording thread.
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
  Stack again;
  for (const auto& argument : arguments) again.push_back(recording->for_replay(argument));
  if (writes(schema)) {
    recording->steps.push_back([op, again] { run_again(op, again, {}); });
    for (auto& value : written(schema, arguments)) stack->push_back(std::move(value));
    return;
  }
  Stack results = arguments;
  op.callBoxed(results);
  if (is_view_of(results.front().toTensor(), arguments)) {
    stack->insert(stack->end(), results.begin(), results.end());
    return;
  }
  const bool computes = !schema.name().starts_with("aten::empty");
  for (const auto& result : results) stack->emplace_back(recording->lend(result.toTensor(), !computes));
  if (computes) recording->steps.push_back([op, again, results] { run_again(op, again, results); });
}

/// While an object lives, the thread's operators and kernels are recorded on the tape.
class Recording {
 public:
  explicit Recording(Tape& tape) : tape_(tape), steps_(tape.steps) { recording = &tape; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    tape_.end();
    recording = nullptr;
  }

 private:
  Tape& tape_;
  emulated::TapeGuard steps_;
};

}  // namespace

std::unique_ptr<RecordedWork> EmulatedRecorder::record(const std::function<void()>& body) const {
  auto tape = std::make_unique<Tape>();
  const int which = asked_++;
  operators_left = which >= first_ && which < end_ ? fails_ : -1;
  const Recording guard(*tape);
  const c10::impl::IncludeDispatchKeyGuard all(c10::DispatchKey::TESTING_ONLY_GenericMode);
  body();
  return tape;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&write_down>());
}

}  // namespace fsdp::test
