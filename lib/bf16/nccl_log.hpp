#pragma once
// Which way NCCL moves data, from NCCL's own log: no call of its interface tells.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp {

/// Has NCCL write its log to a file of this process, and reads it. Where the user has set NCCL_DEBUG_FILE or
/// NCCL_DEBUG, their setting stays and this says nothing.
class NcclLog {
 public:
  /// Sets the environment: call it before NCCL is used.
  NcclLog();
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;
  /// Removes the file.
  ~NcclLog();

  /// What the connections made since the last call go through: "NET/IB", "P2P/CUMEM + NET/Socket"; "" when there is
  /// nothing to go by.
  std::string transport_since();

 private:
  std::filesystem::path file_;
  std::uint64_t seen_bytes_ = 0;
};

namespace detail {

/// The transports of all "Channel ... via ..." lines, sorted and joined; without any, the "Using network" line's as
/// NET/x.
std::string transports_in_log(std::string_view text);

}  // namespace detail
}  // namespace fsdp
