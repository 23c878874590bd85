#include "lib/training/data/scan_ids.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/token_cache.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSmallFile = std::int64_t{64} << 20;  // ids; read in less than a second
constexpr std::int64_t kIdsAtOnce = std::int64_t{1} << 20;
constexpr std::int64_t kRowsAtOnce = 4096;
constexpr std::int64_t kMostOfRecord = kSmallFile;  ///< of a longer document the first ids

struct LargestId {
  std::int64_t id = -1, record = 0;
};

/// Calls `body` with the ids of records [first, end) of the file, in pieces.
void read_pieces(
    const TokenFile& file, std::int64_t first, std::int64_t end,
    const std::function<void(std::int64_t first, std::int64_t count, std::span<const std::int32_t>)>& body) {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> rows;
  const auto width = file.row_length();
  const auto at_once = width > 0 ? std::clamp<std::int64_t>(kIdsAtOnce / width, 1, kRowsAtOnce) : 1;
  for (auto record = first; record < end; record += at_once) {
    const auto count = std::min(at_once, end - record);
    ids.resize(static_cast<std::size_t>(width > 0 ? count * width : std::min(file.length(record), kMostOfRecord)));
    if (width > 0) {
      rows.clear();
      for (std::int64_t row = record; row < record + count; ++row) rows.push_back(row);
      file.read_rows(rows, ids);
    } else {
      file.read(record, ids);
    }
    body(record, count, ids);
  }
}

/// The result of an earlier run; none if there is no readable one.
std::optional<LargestId> kept_result(const fs::path& entry) {
  if (!TokenCache::holds(entry)) return std::nullopt;
  try {
    const auto json = parse_json_or_discard(read_text_file(entry, 4096), entry.string());
    return LargestId{json.at("largest_id").get<std::int64_t>(), json.at("record").get<std::int64_t>()};
  } catch (const Error&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

/// Changes with the path, and with size and time of the files that the ids come from.
std::uint64_t identity_of(const TokenFile& tokens, std::int64_t records) {
  std::string text = fmt::format("{} {}", fs::weakly_canonical(tokens.file()).string(), records);
  for (const auto& file : tokens.files()) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) continue;
    text += fmt::format(" {} {} {}.{}", file.filename().string(), status.st_size, status.st_mtim.tv_sec,
                        status.st_mtim.tv_nsec);
  }
  return fnv1a(text);
}

/// The largest id of this rank's part.
LargestId scan_part(ProcessGroup& world, const TokenFile& file, const IdScan& scan, const Logger& log,
                    const std::function<bool()>& stop_wanted) {
  constexpr double kSecondsBetweenLines = 10;
  Progress progress(log, !scan.quiet && world.rank() == 0, kSecondsBetweenLines);
  const auto first = scan.records * world.rank() / world.size(), end = scan.records * (world.rank() + 1) / world.size();
  const auto what = fmt::format("checking  {}", file.file().filename().string());
  LargestId largest;
  std::int64_t ids_read = 0;
  read_pieces(file, first, end, [&](std::int64_t record, std::int64_t count, std::span<const std::int32_t> ids) {
    if (stop_wanted && stop_wanted())
      throw RuntimeFailure("stopped while the ids of " + file.file().string() + " were being checked");
    ids_read += std::ssize(ids);
    std::int32_t top = -1;  // several times as fast as max_element(), which keeps the place, too
    for (const auto id : ids) top = std::max(top, id);
    if (top > largest.id)
      largest = {top, record + (std::ranges::find(ids, top) - ids.begin()) / (std::ssize(ids) / count)};
    const auto done =
        static_cast<double>(record + count - first) / static_cast<double>(std::max<std::int64_t>(1, end - first));
    progress.show_share(what, done, format_count_of(ids_read, "id"));
  });
  progress.finish();
  return largest;
}

}  // namespace

void scan_ids(ProcessGroup& world, const TokenFile& file, const IdScan& scan, const Logger& log,
              const std::function<bool()>& stop_wanted) {
  if (file.notes().vocab_size > 0) return;
  fs::path entry;  // of a large file
  LargestId largest;
  const auto known = text_of_root(world, [&]() -> std::string {
    std::int64_t ids = 0;
    for (std::int64_t record = 0; record < scan.records && ids <= kSmallFile; ++record) ids += file.length(record);
    if (ids <= kSmallFile) return "";
    if (!scan.reads_large) return "unread";
    const TokenCache cache(scan.directory);
    entry = cache.entry(file.file(), identity_of(file, scan.records), ".ids.json");
    const auto kept = kept_result(entry);
    return kept ? fmt::format("{} {}", kept->id, kept->record) : "";
  });
  if (known == "unread")
    return log.info(
        fmt::format("ids       of {} are not checked: the run will, before its first step", file.file().string()));
  if (!known.empty()) {
    const auto blank = known.find(' ');
    largest = {std::stoll(known.substr(0, blank)), std::stoll(known.substr(blank + 1))};
  } else {
    LargestId here;
    run_agreed(world, [&] {
      if (world.rank() == 0) file.check();
      here = scan_part(world, file, scan, log, stop_wanted);
    });
    largest.id = static_cast<std::int64_t>(world.all_reduce(static_cast<double>(here.id), Reduce::max));
    // Records are counted exactly in a double up to 2^53.
    const auto record =
        here.id == largest.id ? static_cast<double>(here.record) : std::numeric_limits<double>::infinity();
    largest.record = static_cast<std::int64_t>(world.all_reduce(record, Reduce::min));
    run_agreed(world, [&] {
      if (entry.empty()) return;
      replace_file(
          entry,
          json_text({{"file", file.file().string()}, {"largest_id", largest.id}, {"record", largest.record}}) + "\n");
      log.info(fmt::format("checked   {}: its largest id is {}", file.file().string(), format_count(largest.id)));
    });
  }
  if (largest.id < scan.vocab_size) return;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(file.length(largest.record), kMostOfRecord)));
  file.read(largest.record, ids);
  check_token_ids(ids, scan.vocab_size, file.file(), {&largest.record, 1});
}

}  // namespace fsdp
