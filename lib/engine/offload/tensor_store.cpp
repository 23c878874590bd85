#include "lib/engine/offload/tensor_store.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kTransferUnit_bytes - 1) / kTransferUnit_bytes * kTransferUnit_bytes;
}

/// Allocates bytes at an address that is aligned for O_DIRECT.
at::Tensor room_for(std::uint64_t bytes, at::Device device) {
  constexpr auto kUnit = static_cast<std::int64_t>(kTransferUnit_bytes);
  const std::int64_t size = bytes;
  const auto room = at::empty({size + kUnit}, at::TensorOptions(at::kByte).device(device));
  const std::int64_t address = reinterpret_cast<std::uintptr_t>(room.storage().data());
  return room.narrow(0, (kUnit - address % kUnit) % kUnit, size);
}

at::Tensor view_of(const at::Tensor& bytes, std::uint64_t offset, at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto length = c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, static_cast<std::int64_t>(offset), length).view(dtype).view(sizes);
}

}  // namespace

at::Tensor PinnedTensors::read(const StoreHandle& place) const {
  const auto& rows = groups_.at(place.group).at(place.tensor);
  if (!rows.written) return at::zeros(rows.sizes, rows.dtype);
  const auto bytes = room_for(rows.bytes, at::kCPU);
  file_->read_at(rows.offset, {static_cast<std::byte*>(bytes.data_ptr()), static_cast<std::size_t>(rows.bytes)});
  return view_of(bytes, 0, rows.sizes, rows.dtype);
}

TensorStore::TensorStore(const Ops& ops, StoreOptions options) : ops_(ops), group_bytes_(options.group_bytes) {
  if (!options.directory) return;
  file_ = std::make_unique<ScratchFile>(*options.directory);
  queue_ = make_file_queue(*file_);
}

TensorStore::~TensorStore() = default;

std::string TensorStore::describe() const {
  if (queue_ == nullptr) return "";
  return std::string(queue_->name()) + (file_->is_direct() ? ", O_DIRECT" : ", through the page cache");
}

void TensorStore::on_silence(std::function<void(double seconds)> tell) {
  if (queue_ != nullptr) queue_->on_silence(std::move(tell));
}

std::size_t TensorStore::add_group(MemoryCategory category, bool kept) {
  auto& group = groups_.emplace_back();
  group.category = category;
  group.kept = kept;
  return groups_.size() - 1;
}

StoreHandle TensorStore::add(std::size_t group, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (reserved_) throw std::logic_error("nothing can be added to a store that is in use");
  auto& g = groups_.at(group);
  const auto bytes = round_up(static_cast<std::uint64_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype));
  g.items.push_back({sizes.vec(), dtype, g.bytes, bytes});
  g.bytes += bytes;
  return {group, g.items.size() - 1};
}

void TensorStore::reserve() {
  reserved_ = true;
  for (auto& group : groups_) {
    group.places[0] = file_bytes_;
    file_bytes_ += group.bytes;
  }
  auto end = file_bytes_;
  for (auto& group : groups_) {
    if (!group.kept) continue;
    group.places[1] = end;
    end += group.bytes;
    kept_bytes_ += group.bytes;
  }
  set_budget();
  if (file_ == nullptr || file_bytes_ == 0 || file_->reserve(file_bytes_)) return;
  throw IoError(file_->directory().string() + ": a rank's part of the optimizer needs " +
                    format_bytes(static_cast<double>(file_bytes_)) + " there, " +
                    format_bytes(static_cast<double>(file_->free_bytes())) + " are free",
                Remedy::larger_disk);
}

/// Sets the memory budget. The largest groups must fit. Typical groups must fit three at a time (one in use, one being
/// read, one being written), groups that are not kept (gradients) two at a time. The 90th percentile of sizes counts as
/// typical, so that a single large embedding does not.
void TensorStore::set_budget() {
  std::vector<std::int64_t> kept, other;
  for (const auto& group : groups_) {
    if (group.bytes > 0) (group.kept ? kept : other).push_back(static_cast<std::int64_t>(group.bytes));
  }
  std::int64_t usual = 0, largest = 0;
  for (auto* sizes : {&kept, &other}) {
    if (sizes->empty()) continue;
    std::sort(sizes->begin(), sizes->end());
    usual += (sizes == &kept ? 3 : 2) * (*sizes)[(sizes->size() * 9) / 10];
    largest += sizes->back();
  }
  budget_bytes_ = std::max(usual, largest);
}

at::Tensor TensorStore::tensor(const StoreHandle& place) const {
  const auto& group = groups_.at(place.group);
  if (group.where != Where::here || group.holds == 0) throw std::logic_error("this group of tensors is not held");
  const auto& item = group.items.at(place.tensor);
  return view_of(group.buffer, item.offset, item.sizes, item.dtype);
}

const std::vector<std::int64_t>& TensorStore::sizes(const StoreHandle& place) const {
  return groups_.at(place.group).items.at(place.tensor).sizes;
}

at::ScalarType TensorStore::dtype(const StoreHandle& place) const {
  return groups_.at(place.group).items.at(place.tensor).dtype;
}

FileTransfer TensorStore::transfer_of(Group& group, bool write) const {
  return {write, static_cast<std::byte*>(group.buffer.data_ptr()), group.bytes, element(group.places, group.current)};
}

void TensorStore::allocate(Group& group) {
  const MemoryScope scope(group.category, true);
  group.buffer = room_for(group.bytes, ops_.host());
  resident_bytes_ += group.bytes;
}

void TensorStore::start_read(Group& group) {
  allocate(group);
  group.where = Where::coming;
  if (!group.written) {
    group.buffer.zero_();
  } else if (queue_ != nullptr) {
    group.ticket = queue_->start(transfer_of(group, false));
    stats_.bytes_read += group.bytes;
  }
}

/// Waits for the group's transfer in progress.
void TensorStore::finish(Group& group) {
  const bool on_disk = group.where == Where::going || group.written;
  if (queue_ == nullptr || !on_disk) return;
  const auto start = std::chrono::steady_clock::now();
  queue_->wait(group.ticket);
  stats_.wait_seconds += seconds_since(start);
}

void TensorStore::bring(Group& group, Access access) {
  switch (group.where) {
    case Where::here:
      return;
    case Where::disk:
      make_room(group.bytes);
      if (access == Access::overwrite) {
        allocate(group);
        break;
      }
      start_read(group);
      [[fallthrough]];
    case Where::coming:
      finish(group);
      break;
    case Where::going:
      std::erase(going_, to_index(&group - groups_.data()));
      going_bytes_ -= group.bytes;
      finish(group);
      break;
  }
  group.where = Where::here;
}

void TensorStore::hold(std::size_t index, Access access) {
  if (!reserved_) reserve();
  auto& group = groups_.at(index);
  if (idle_ == index) {
    idle_.reset();
  } else {
    retire_idle();
  }
  if (group.holds == 0) bring(group, access);
  ++group.holds;
  group.changed |= access != Access::read;
}

void TensorStore::release(std::size_t index) {
  auto& group = groups_.at(index);
  if (--group.holds > 0) return;
  retire_idle();
  idle_ = index;
  if (!group.kept) retire_idle();
}

void TensorStore::retire_idle() {
  if (!idle_) return;
  const auto index = *idle_;
  idle_.reset();
  put_away(index);
}

void TensorStore::put_away(std::size_t index) {
  auto& group = groups_[index];
  if (!group.changed) {
    resident_bytes_ -= group.bytes;
    group.buffer.reset();
    group.where = Where::disk;
    return;
  }
  if (group.pinned == group.current) group.current = 1 - group.current;
  group.changed = false;
  group.written = true;
  group.where = Where::going;
  going_.push_back(index);
  going_bytes_ += group.bytes;
  if (queue_ == nullptr) return;
  group.ticket = queue_->start(transfer_of(group, true));
  stats_.bytes_written += group.bytes;
}

void TensorStore::drop_oldest_written() {
  auto& group = groups_[going_.front()];
  going_.pop_front();
  going_bytes_ -= group.bytes;
  finish(group);
  resident_bytes_ -= group.bytes;
  group.buffer.reset();
  group.where = Where::disk;
}

/// Frees buffers in an order that does not depend on timing, so that memory use is predictable.
void TensorStore::make_room(std::uint64_t bytes) {
  const std::int64_t wanted = bytes;
  while (resident_bytes_ + wanted > budget_bytes_ && !going_.empty()) drop_oldest_written();
}

bool TensorStore::read_ahead(std::size_t index) {
  auto& group = groups_.at(index);
  if (group.where != Where::disk) return true;
  if (resident_bytes_ - going_bytes_ + static_cast<std::int64_t>(group.bytes) > budget_bytes_) return false;
  make_room(group.bytes);
  start_read(group);
  return true;
}

void TensorStore::flush() {
  retire_idle();
  while (!going_.empty()) drop_oldest_written();
}

bool TensorStore::may_go_on_while_pinned() {
  if (!reserved_) reserve();
  if (file_ != nullptr && !has_second_half_) has_second_half_ = file_->reserve(file_bytes_ + kept_bytes_);
  return has_second_half_;
}

std::shared_ptr<const PinnedTensors> TensorStore::pin() {
  if (!reserved_) reserve();
  flush();
  auto pinned = std::make_shared<PinnedTensors>();
  pinned->file_ = file_.get();
  for (auto& group : groups_) {
    auto& rows = pinned->groups_.emplace_back();
    if (!group.kept) continue;
    group.pinned = group.current;
    for (const auto& item : group.items) {
      rows.push_back(
          {item.sizes, item.dtype, element(group.places, group.current) + item.offset, item.bytes, group.written});
    }
  }
  return pinned;
}

void TensorStore::unpin() {
  for (auto& group : groups_) group.pinned.reset();
}

}  // namespace fsdp
