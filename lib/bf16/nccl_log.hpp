#pragma once
// Finds out which transport NCCL uses by parsing its log, since NCCL has no function that tells.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp {

/// Makes NCCL log to a file of this process and parses the file. If the user has set NCCL_DEBUG_FILE or NCCL_DEBUG,
/// these settings stay and transport_since() returns "".
class NcclLog {
 public:
  /// Sets environment variables: construct it before NCCL is first used.
  /// \param collectives  logs each collective, too, whose lines tell of networks that reduce: for short programs
  explicit NcclLog(bool collectives = true);
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;
  /// Removes the log file.
  ~NcclLog();

  /// \return the transports of the connections made since the last call: "NET/IB", "P2P/CUMEM + NET/Socket"; "" when
  /// the log does not tell
  std::string transport_since();
  /// Removes the log file, into which NCCL then writes unseen.
  void remove();

 private:
  std::filesystem::path file_;
  std::uint64_t seen_bytes_ = 0;
};

namespace detail {

/// \return the transports of all "Channel ... via ..." lines, sorted and joined; if there are none, NET/x from the
/// "Using network x" line
std::string transports_in_log(std::string_view text);

}  // namespace detail

}  // namespace fsdp
