#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lib/hub/repo.hpp"
#include "lib/hub/retry.hpp"
#include "lib/hub/selection.hpp"

namespace fsdp {

struct DownloadOptions {
  RepoId repo;
  std::string revision = "main";
  Selection selection;
  std::optional<std::filesystem::path> local_dir;  ///< instead of the cache
  int jobs = 8;                                    ///< connections at once
  std::uint64_t part_bytes = 64u << 20;            ///< of a large file that one request asks for
  std::uint64_t piece_bytes = 1u << 20;  ///< written and journalled at once: what a kill can lose, per connection
  RetryPolicy retries;
  std::chrono::milliseconds takeover_after = std::chrono::seconds(90);
};

}  // namespace fsdp
