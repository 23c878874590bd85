#pragma once
// A rank's time: its own work, by kind, and waits for other ranks.
#include <array>
#include <cstddef>
#include <cstdint>

namespace fsdp {

enum class WorkKind : std::uint8_t { compute, read, write };

/// Nanoseconds since the record began. Time outside of any work counts as computing.
struct TimeUse {
  std::int64_t wait_ns = 0;  ///< for other ranks, and for what they send to arrive
  std::array<std::int64_t, 3> work_ns{};

  std::int64_t& of(WorkKind kind) { return work_ns[static_cast<std::size_t>(kind)]; }
  std::int64_t of(WorkKind kind) const { return work_ns[static_cast<std::size_t>(kind)]; }
};

}  // namespace fsdp
