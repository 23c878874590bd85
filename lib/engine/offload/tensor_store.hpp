#pragma once
// Tensors of which few are in memory at a time: groups on a disk, read ahead and written behind while others are used.
//
// A group's buffer is there from its hold() until the room is needed for another; that the file is behind shows
// nowhere. As many bytes stay in memory as three groups of usual size have, or the largest one. A store is one
// thread's.
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
#include "lib/engine/offload/scratch_file.hpp"

namespace fsdp {

/// Handle of a tensor in a TensorStore.
struct StorePlace {
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
  /// On the host. \throws IoError
  at::Tensor read(const StorePlace& place) const;

 private:
  friend class TensorStore;
  struct Rows {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    std::uint64_t offset = 0, bytes = 0;
    bool written = false;  ///< false: zeros
  };
  const ScratchFile* file_ = nullptr;
  std::vector<std::vector<Rows>> groups_;
};

class TensorStore {
 public:
  /// \param ops  must outlive the store. \throws IoError when no scratch file can be made
  TensorStore(const Ops& ops, StoreOptions options);
  TensorStore(const TensorStore&) = delete;
  TensorStore& operator=(const TensorStore&) = delete;
  ~TensorStore();

  /// \param kept  checkpoints hold it; else it is written at once when it is released: nobody needs it soon
  std::size_t add_group(MemoryCategory category, bool kept);
  /// Zeros.
  StorePlace add(std::size_t group, at::IntArrayRef sizes, at::ScalarType dtype);
  /// Ends the adding and takes room on the disk; the first hold() does it, too. \throws IoError saying how much is
  /// needed and how much is free
  void reserve();

  /// Brings a group into memory and keeps it there. May be nested. \throws IoError
  void hold(std::size_t group, Access access);
  /// Ends one hold().
  void release(std::size_t group);
  /// Begins to read a group, if there is room for it beside what is in use. \return whether it is here, or will be
  bool read_ahead(std::size_t group);
  /// Writes all changed groups to the file and frees their memory.
  void flush();
  bool is_held(std::size_t group) const { return groups_.at(group).holds > 0; }
  /// Valid while the group of the tensor is held.
  at::Tensor tensor(const StorePlace& place) const;
  const std::vector<std::int64_t>& sizes(const StorePlace& place) const;
  at::ScalarType dtype(const StorePlace& place) const;

  /// The kept groups as they are now; what is written from now on goes elsewhere until unpin().
  std::shared_ptr<const PinnedTensors> pin();
  void unpin();
  /// Whether there is room for what is written while pinned; without it nothing may be released before unpin().
  bool may_go_on_while_pinned();

  const StoreStats& stats() const { return stats_; }
  /// On the disk, of this rank; `kept` alone: as much again while pinned.
  std::uint64_t file_bytes() const { return file_bytes_; }
  std::uint64_t kept_bytes() const { return kept_bytes_; }
  std::int64_t budget_bytes() const { return budget_bytes_; }
  std::int64_t group_bytes() const { return group_bytes_; }
  bool is_in_memory() const { return file_ != nullptr && file_->is_in_memory(); }
  /// "io_uring, O_DIRECT"
  std::string describe() const;
  void on_silence(std::function<void(double seconds)> tell);

 private:
  enum class Where { disk, coming, here, going };
  struct Item {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    std::uint64_t offset = 0, bytes = 0;  ///< in the group
  };
  struct Group {
    MemoryCategory category;
    bool kept;
    std::vector<Item> items;
    std::uint64_t bytes = 0;
    std::uint64_t places[2] = {0, 0};  ///< in the file; kept groups have two
    int current = 0;                   ///< of these
    std::optional<int> pinned;
    Where where = Where::disk;
    at::Tensor buffer;
    FileQueue::Ticket ticket = 0;
    int holds = 0;
    bool written = false;  ///< the file has it: until then it is zeros
    bool changed = false;  ///< the file is behind
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
  std::deque<std::size_t> going_;    ///< written or being written, oldest first; their buffers are still there
  std::optional<std::size_t> idle_;  ///< released last, not yet put away
  std::uint64_t file_bytes_ = 0, kept_bytes_ = 0;
  std::int64_t group_bytes_, budget_bytes_ = 0, resident_bytes_ = 0, going_bytes_ = 0;
  bool has_second_half_ = false, reserved_ = false;
  StoreStats stats_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<FileQueue> queue_;  ///< ends before the buffers do
};

/// RAII guard for TensorStore::hold() and release().
class StoreHold {
 public:
  StoreHold(TensorStore& store, std::size_t group, Access access) : store_(&store), group_(group) {
    store.hold(group, access);
  }
  StoreHold(StoreHold&& other) noexcept : store_(std::exchange(other.store_, nullptr)), group_(other.group_) {}
  StoreHold& operator=(StoreHold&&) = delete;
  StoreHold(const StoreHold&) = delete;
  StoreHold& operator=(const StoreHold&) = delete;
  ~StoreHold() {
    if (store_ != nullptr) store_->release(group_);
  }

 private:
  TensorStore* store_;
  std::size_t group_;
};

/// A tensor that is either always in memory, or in a store and in memory while its group is held.
class StoredTensor {
 public:
  StoredTensor() = default;
  StoredTensor(at::Tensor values) : values_(std::move(values)) {}  // NOLINT: a tensor is one
  StoredTensor(const TensorStore& store, StorePlace place) : store_(&store), place_(place) {}

  at::Tensor get() const { return store_ == nullptr ? values_ : store_->tensor(place_); }
  at::ScalarType dtype() const { return store_ == nullptr ? values_.scalar_type() : store_->dtype(place_); }
  at::IntArrayRef sizes() const { return store_ == nullptr ? values_.sizes() : at::IntArrayRef(store_->sizes(place_)); }
  /// Null: the tensor is always in memory.
  const TensorStore* store() const { return store_; }
  const StorePlace& place() const { return place_; }

 private:
  at::Tensor values_;
  const TensorStore* store_ = nullptr;
  StorePlace place_;
};

}  // namespace fsdp
