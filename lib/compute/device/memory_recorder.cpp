#include "lib/compute/device/memory_recorder.hpp"

#include <c10/core/Allocator.h>

#include <stdexcept>

namespace fsdp {
namespace {

/// The tape of this thread, for the allocator.
std::shared_ptr<MemoryTape>& current_tape() {
  thread_local std::shared_ptr<MemoryTape> tape;
  return tape;
}

/// An address that no process can map, so that an access ends the program.
void* address_of(std::int32_t block) {
  return reinterpret_cast<void*>((std::uintptr_t{1} << 60) + (static_cast<std::uintptr_t>(block) << 6));
}

/// Context of a meta tensor's storage.
struct Held {
  std::shared_ptr<MemoryTape> tape;
  MemoryTape::Block block;
};

void free_held(void* context) {
  const std::unique_ptr<Held> held(static_cast<Held*>(context));
  held->tape->free(held->block);
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t n) override {
    const auto device = c10::Device(c10::DeviceType::Meta);
    const auto& tape = current_tape();
    if (tape == nullptr) return {nullptr, nullptr, &do_nothing, device};
    auto held = std::make_unique<Held>(Held{tape, tape->allocate(static_cast<std::int64_t>(n))});
    void* address = held->block.address;
    return {address, held.release(), &free_held, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void do_nothing(void*) {}
};

void install_meta_allocator() {
  static const bool done = [] {
    static auto* const allocator = new MetaAllocator;  // never destroyed: tensors may outlive static destruction
    c10::SetAllocator(c10::DeviceType::Meta, allocator, 100);
    return true;
  }();
  (void)done;
}

}  // namespace

void MemoryTape::add(std::int64_t bytes, std::int32_t block, const MemoryScope::Note& note) {
  log_.records.push_back(
      {bytes, block, static_cast<std::int32_t>(log_.phases.size()) - 1, note.category, note.on_host && beside_gpu_});
}

MemoryTape::Block MemoryTape::allocate(std::int64_t bytes) {
  const Block block{address_of(next_block_), bytes, next_block_, MemoryScope::current()};
  ++next_block_;
  add(bytes, block.number, block.note);
  if (beside_gpu_ && block.note.on_host) on_host_.insert(block.address);
  return block;
}

void MemoryTape::free(const Block& block) {
  add(-block.bytes, block.number, block.note);
  on_host_.erase(block.address);
}

void MemoryTape::record_external(std::int64_t bytes) { add(bytes, -1, MemoryScope::current()); }

void MemoryTape::begin(std::string_view what, std::string_view category) {
  if (category != "optimizer") log_.phases.emplace_back(what);
}

MemoryRecorder::MemoryRecorder(bool beside_gpu) : tape_(std::make_shared<MemoryTape>(beside_gpu)) {
  if (current_tape() != nullptr) throw std::logic_error("a thread has one memory recorder at a time");
  install_meta_allocator();
  current_tape() = tape_;
}
MemoryRecorder::~MemoryRecorder() { current_tape() = nullptr; }

}  // namespace fsdp
