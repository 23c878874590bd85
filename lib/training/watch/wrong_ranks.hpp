#pragma once
// Ends a job in which a rank's numbers are not what they must be, and names the rank and its node.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp::detail {

/// Numbers that stand for many others, of one rank.
using Digests = std::vector<std::uint64_t>;

/// A sum over the bits of a tensor, which no order of additions changes. Waits for the device.
std::uint64_t digest(const at::Tensor& values);

/// \return those of all ranks of the group, by rank. Collective
std::vector<Digests> gather_digests(ProcessGroup& ranks, const Digests& local);

/// True on every rank where all ranks compute with the same arithmetic, and so get the same bits. Collective.
/// \param arithmetic  of this rank
bool rounds_alike(ProcessGroup& world, const std::string& arithmetic);

struct WrongNumbers {
  std::string what;        ///< "the gathered wte.weight differs between ranks"
  std::vector<int> ranks;  ///< of the world: those that are wrong, or may be
  bool is_sure = false;    ///< they are wrong, and not others
  std::string how;         ///< "has not what the others have"
};

class WrongRanks {
 public:
  /// \param exclude_file  see exclude_file.hpp; empty: none. World and log must outlive the object
  WrongRanks(ProcessGroup& world, const Logger& log, std::filesystem::path exclude_file);

  /// Collective over the world, if not all ranks of it found the same. \param state  "step 41 is not saved"
  /// \throws RuntimeFailure on all ranks with what the lowest rank found that found something
  void require_none(const std::optional<WrongNumbers>& local, const std::string& state) const;
  /// The same, for what all ranks found.
  [[noreturn]] void fail(const WrongNumbers& found, const std::string& state) const;
  /// Requires that all ranks of a group, which need not be the world, have the same digests; require_none() with those
  /// that have not. \param names  of each digest
  void require_equal(ProcessGroup& ranks, const Digests& local, const std::vector<std::string>& names,
                     const std::string& state) const;

 private:
  ProcessGroup& world_;
  const Logger& log_;
  std::filesystem::path exclude_file_;
};

}  // namespace fsdp::detail
