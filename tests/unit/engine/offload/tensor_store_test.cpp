#include "lib/engine/offload/tensor_store.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/full.h>

#include <thread>

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/tensor/host_allocator.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::Access;
using fsdp::MemoryCategory;
using fsdp::StoreHandle;
using fsdp::StoreHold;
using fsdp::TensorStore;
using fsdp::test::TempDir;

namespace {

constexpr std::int64_t kRows = 100, kColumns = 1024;
constexpr std::int64_t kGroupBytes = kRows * kColumns * 4;

/// Groups with one float32 tensor each.
std::vector<StoreHandle> add_groups(TensorStore& store, int count, bool kept = true) {
  std::vector<StoreHandle> places;
  for (int i = 0; i < count; ++i)
    places.push_back(
        store.add(store.add_group(MemoryCategory::optimizer, kept), at::IntArrayRef{kRows, kColumns}, at::kFloat));
  return places;
}

void set(TensorStore& store, const StoreHandle& place, double value) {
  const StoreHold held(store, place.group, Access::update);
  store.tensor(place).fill_(value);
}

bool is(TensorStore& store, const StoreHandle& place, double value) {
  const StoreHold held(store, place.group, Access::read);
  return store.tensor(place).eq(value).all().item<bool>();
}

bool is_pinned(const fsdp::PinnedTensors& pinned, const StoreHandle& place, double value) {
  return pinned.read(place).eq(value).all().item<bool>();
}

}  // namespace

TEST_SUITE("offload/tensor store") {
  TEST_CASE("tensors start as zeros and keep their values while only a few are in memory") {
    fsdp::install_host_allocator();
    const fsdp::CpuOps ops;
    const TempDir dir;
    TensorStore store(ops, {dir.path()});
    const auto places = add_groups(store, 20);
    store.reserve();
    CHECK(store.file_bytes() == 20 * kGroupBytes);
    CHECK(store.budget_bytes() == 3 * kGroupBytes);

    const auto before = fsdp::host_memory_stats().current_bytes;
    fsdp::reset_host_memory_peak();
    for (std::size_t round = 0; round < 4; ++round) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        const StoreHold held(store, places[i].group, Access::update);
        if (i + 1 < places.size()) store.read_ahead(places[i + 1].group);
        const auto tensor = store.tensor(places[i]);
        CHECK(tensor.eq(round == 0 ? 0.0 : static_cast<double>(100 * round + i)).all().item<bool>());
        tensor.fill_(static_cast<double>(100 * (round + 1) + i));
      }
    }
    for (std::size_t i = 0; i < places.size(); ++i) CHECK(is(store, places[i], static_cast<double>(400 + i)));
    // The result of a comparison is allocated, too.
    const auto peak = fsdp::host_memory_stats().peak_bytes - before;
    CHECK(peak >= 3 * kGroupBytes);
    CHECK(peak < 3 * kGroupBytes + kGroupBytes);
    // Each round reads and writes every group once, except for groups still in memory and the initial zeros.
    CHECK(store.stats().bytes_written == 4 * 20 * kGroupBytes);
    CHECK(store.stats().bytes_read <= 4 * 20 * kGroupBytes);
    CHECK(store.stats().bytes_read >= (4 * 20 - 4 * 3) * kGroupBytes);
    CHECK(std::filesystem::is_empty(dir.path()));
  }

  TEST_CASE("a group holds tensors of several types, and is not written after mere reads") {
    const fsdp::CpuOps ops;
    const TempDir dir;
    TensorStore store(ops, {dir.path()});
    const auto group = store.add_group(MemoryCategory::optimizer, true);
    const auto codes = store.add(group, at::IntArrayRef{7, 3}, at::kByte);
    const auto halves = store.add(group, at::IntArrayRef{5}, at::kBFloat16);
    const auto none = store.add(group, at::IntArrayRef{0, 4}, at::kFloat);
    const auto others = add_groups(store, 5);
    {
      const StoreHold held(store, group, Access::update);
      store.tensor(codes).fill_(200);
      store.tensor(halves).fill_(1.5);
      CHECK(store.tensor(none).numel() == 0);
    }
    for (const auto& other : others) set(store, other, 1);
    CHECK(store.sizes(codes) == std::vector<std::int64_t>{7, 3});
    const bool is_half = store.dtype(halves) == at::kBFloat16;
    CHECK(is_half);
    CHECK(is(store, codes, 200));
    CHECK(is(store, halves, 1.5));
    const auto written = store.stats().bytes_written;
    for (const auto& other : others) CHECK(is(store, other, 1));
    CHECK(store.stats().bytes_written <= written + static_cast<std::uint64_t>(kGroupBytes));
    CHECK_THROWS_AS(store.tensor(codes), std::logic_error);
    CHECK_THROWS_AS(store.add(group, at::IntArrayRef{1}, at::kFloat), std::logic_error);
  }

  TEST_CASE("pinned tensors stay unchanged for a reading thread while others are written") {
    const fsdp::CpuOps ops;
    const TempDir dir;
    TensorStore store(ops, {dir.path()});
    const auto places = add_groups(store, 8);
    const auto never = add_groups(store, 1);
    for (std::size_t round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < places.size(); ++i) set(store, places[i], static_cast<double>(10 * round + i));
      const auto pinned = store.pin();
      REQUIRE(store.may_go_on_while_pinned());
      bool same = is_pinned(*pinned, never[0], 0);
      std::thread reader([&] {
        for (int again = 0; again < 5; ++again) {
          for (std::size_t i = 0; i < places.size(); ++i)
            same = is_pinned(*pinned, places[i], static_cast<double>(10 * round + i)) && same;
        }
      });
      for (int step = 0; step < 5; ++step) {
        for (std::size_t i = 0; i < places.size(); ++i) {
          const StoreHold held(store, places[i].group, Access::update);
          store.tensor(places[i]).add_(1);
        }
      }
      reader.join();
      CHECK(same);
      store.unpin();
      for (std::size_t i = 0; i < places.size(); ++i)
        CHECK(is(store, places[i], static_cast<double>(10 * round + i + 5)));
    }
  }

  TEST_CASE("without a disk, the same number of bytes is in memory") {
    fsdp::install_host_allocator();
    const fsdp::CpuOps ops;
    const TempDir dir;
    std::vector<std::int64_t> peaks;
    for (const bool real : {true, false}) {
      TensorStore store(ops, real ? fsdp::StoreOptions{dir.path()} : fsdp::StoreOptions{});
      const auto kept = add_groups(store, 9), not_kept = add_groups(store, 3, false);
      const auto before = fsdp::host_memory_stats().current_bytes;
      fsdp::reset_host_memory_peak();
      for (int step = 0; step < 2; ++step) {
        for (std::size_t unit = 0; unit < 3; ++unit) set(store, not_kept[unit], 1);
        for (std::size_t i = 0; i < kept.size(); ++i) {
          const StoreHold gradients(store, not_kept[i / 3].group, Access::read);
          set(store, kept[i], 1);
          if (i + 1 < kept.size()) store.read_ahead(kept[i + 1].group);
        }
      }
      peaks.push_back(fsdp::host_memory_stats().peak_bytes - before);
    }
    CHECK(peaks[0] == peaks[1]);
    CHECK(peaks[0] < 7 * kGroupBytes);
  }

  TEST_CASE("a disk that is too small is rejected with the needed space") {
    const fsdp::CpuOps ops;
    const TempDir dir;
    TensorStore store(ops, {dir.path()});
    const auto group = store.add_group(MemoryCategory::optimizer, true);
    store.add(group, at::IntArrayRef{std::int64_t{1} << 50}, at::kFloat);
    CHECK_THROWS_WITH_AS(store.reserve(), doctest::Contains("a rank's part of the optimizer needs 4"), fsdp::IoError);
  }
}
