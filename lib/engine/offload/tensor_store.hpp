#pragma once
// A store for tensors of which only a few are in memory at a time: groups of tensors lie on a disk and are read ahead
// and written back asynchronously.
//
// A group's buffer stays in memory from hold() until its room is needed for another group, and the file is only brought
// up to date when needed. The memory budget is that of a few groups of typical size, or of the largest ones if that is
// more. A store may be used by one thread only.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/offload/file_queue.hpp"

namespace fsdp {

/// Handle of a tensor in a TensorStore.
struct StoreHandle {
  std::size_t group = 0, tensor = 0;
};

/// Use of a group while it is held.
enum class Access {
  read,
  overwrite,  ///< the whole group is written, so its old content is not read
  update
};

struct StoreOptions {
  /// Directory of the scratch file. nullopt: tensors have no values, and nothing is read or written; memory predictions
  /// count their bytes.
  std::optional<std::filesystem::path> directory;
  /// Limit for a group of several kept tensors. Small groups need less memory, large ones use the disk better.
  std::int64_t group_bytes = std::int64_t{48} << 20;
};

struct StoreStats {
  std::uint64_t bytes_read = 0, bytes_written = 0;
  double wait_seconds = 0;  ///< time that the caller waited for the disk
};

/// Snapshot of the kept groups that stays readable while training continues. Thread-safe. The store must outlive it.
class PinnedTensors {
 public:
  /// Reads a tensor into host memory. \throws IoError
  at::Tensor read(const StoreHandle& place) const;

 private:
  friend class TensorStore;
  struct Rows {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    std::uint64_t offset = 0, bytes = 0;
    bool written = false;  ///< false: the values are still zeros
  };
  const ScratchFile* file_ = nullptr;
  std::vector<std::vector<Rows>> groups_;
};

class TensorStore {
 public:
  /// \param ops  must outlive the store. \throws IoError when the scratch file cannot be created
  TensorStore(const Ops& ops, StoreOptions options);
  TensorStore(const TensorStore&) = delete;
  TensorStore& operator=(const TensorStore&) = delete;
  ~TensorStore();

  /// \param kept  checkpoints save the group. A group that is not kept is written as soon as it is released, because it
  /// is not needed soon.
  std::size_t add_group(MemoryCategory category, bool kept);
  /// Adds a tensor of zeros to a group.
  StoreHandle add(std::size_t group, at::IntArrayRef sizes, at::ScalarType dtype);
  /// Ends the adding of groups and allocates disk space; otherwise the first hold() does. \throws IoError with the
  /// needed and the free space
  void reserve();

  /// Reads a group into memory and keeps it there until release(). Calls may be nested. \throws IoError
  void hold(std::size_t group, Access access);
  /// Ends one hold().
  void release(std::size_t group);
  /// Starts to read a group if it fits beside the groups in use. \return whether the group is or will be in memory
  bool read_ahead(std::size_t group);
  /// Writes all changed groups to the file and frees their memory.
  void flush();
  bool is_held(std::size_t group) const { return groups_.at(group).holds > 0; }
  /// \return the tensor, which is valid while its group is held
  at::Tensor tensor(const StoreHandle& place) const;
  const std::vector<std::int64_t>& sizes(const StoreHandle& place) const;
  at::ScalarType dtype(const StoreHandle& place) const;

  /// \return a snapshot of the kept groups; until unpin(), changes are written to other places in the file
  std::shared_ptr<const PinnedTensors> pin();
  void unpin();
  /// Whether there is disk space for changes while pinned; if not, no group may be released before unpin().
  bool may_go_on_while_pinned();

  const StoreStats& stats() const { return stats_; }
  /// Disk space of this rank. While pinned, kept_bytes() are needed in addition.
  std::uint64_t file_bytes() const { return file_bytes_; }
  std::uint64_t kept_bytes() const { return kept_bytes_; }
  std::int64_t budget_bytes() const { return budget_bytes_; }
  std::int64_t group_bytes() const { return group_bytes_; }
  bool is_in_memory() const { return file_ != nullptr && file_->is_in_memory(); }
  /// Describes the way of transfers: "io_uring, O_DIRECT".
  std::string describe() const;
  void on_silence(std::function<void(double seconds)> tell);

 private:
  enum class Where { disk, coming, here, going };
  struct Item {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    std::uint64_t offset = 0, bytes = 0;  ///< within the group
  };
  struct Group {
    MemoryCategory category;
    bool kept;
    std::vector<Item> items;
    std::uint64_t bytes = 0;
    std::uint64_t places[2] = {0, 0};  ///< offsets in the file; kept groups have two
    int current = 0;                   ///< index into places
    std::optional<int> pinned;
    Where where = Where::disk;
    at::Tensor buffer;
    FileQueue::Ticket ticket = 0;
    int holds = 0;
    bool written = false;  ///< false: the file has no values yet and the tensors are zeros
    bool changed = false;  ///< the buffer has changes that are not in the file
  };

  void bring(Group& group, Access access);
  void allocate(Group& group);
  void start_read(Group& group);
  void finish(Group& group);
  void retire_idle();
  void put_away(std::size_t index);
  void make_room(std::uint64_t bytes);
  void drop_oldest_written();
  void set_budget();
  FileTransfer transfer_of(Group& group, bool write) const;

  const Ops& ops_;
  std::vector<Group> groups_;
  std::deque<std::size_t> going_;  ///< groups written or being written, oldest first; their buffers are still allocated
  std::optional<std::size_t> idle_;  ///< the group released last, which has not been written back yet
  std::uint64_t file_bytes_ = 0, kept_bytes_ = 0;
  std::int64_t group_bytes_, budget_bytes_ = 0, resident_bytes_ = 0, going_bytes_ = 0;
  bool has_second_half_ = false, reserved_ = false;
  StoreStats stats_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<FileQueue> queue_;  ///< declared last: destroyed, after its last transfer, before the buffers
};

/// RAII guard for TensorStore::hold() and release(). Without arguments it holds nothing, as for tensors that are always
/// in memory.
class StoreHold {
 public:
  StoreHold() = default;
  StoreHold(TensorStore& store, std::size_t group, Access access) : store_(&store), group_(group) {
    store.hold(group, access);
  }
  StoreHold(StoreHold&& other) noexcept : store_(std::exchange(other.store_, nullptr)), group_(other.group_) {}
  StoreHold& operator=(StoreHold&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(group_, other.group_);
    return *this;
  }
  StoreHold(const StoreHold&) = delete;
  StoreHold& operator=(const StoreHold&) = delete;
  ~StoreHold() { release(); }

  explicit operator bool() const { return store_ != nullptr; }
  /// Ends the hold before the destructor does.
  void release() {
    if (auto* store = std::exchange(store_, nullptr)) store->release(group_);
  }

 private:
  TensorStore* store_ = nullptr;
  std::size_t group_ = 0;
};

/// A tensor that is either always in memory, or in a store and in memory while its group is held.
class StoredTensor {
 public:
  StoredTensor() = default;
  StoredTensor(at::Tensor values) : values_(std::move(values)) {}  // NOLINT: implicit conversion is intended
  StoredTensor(TensorStore& store, StoreHandle place) : store_(&store), place_(place) {}

  /// Keeps the tensor in memory, with the others of its group.
  StoreHold hold(Access access) const {
    return store_ == nullptr ? StoreHold() : StoreHold(*store_, place_.group, access);
  }
  at::Tensor get() const { return store_ == nullptr ? values_ : store_->tensor(place_); }
  at::ScalarType dtype() const { return store_ == nullptr ? values_.scalar_type() : store_->dtype(place_); }
  at::IntArrayRef sizes() const { return store_ == nullptr ? values_.sizes() : at::IntArrayRef(store_->sizes(place_)); }
  /// \return null when the tensor is always in memory
  const TensorStore* store() const { return store_; }
  const StoreHandle& place() const { return place_; }

 private:
  at::Tensor values_;
  TensorStore* store_ = nullptr;
  StoreHandle place_;
};

}  // namespace fsdp
