#include "lib/training/data/token_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"
#include "lib/encoding/fingerprint.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The first line follows https://bford.info/cachedir/: backup programs leave such folders out.
constexpr std::string_view kTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Token files of fsdp-finetune and fsdp-eval, made from texts. Those that were not used for 30 days are removed;\n"
    "# any of them may be removed by hand: it is made again where it is needed.\n";

/// True for names of entries, "texts-0123456789abcdef.h5" and "texts-0123456789abcdef.ids.json", and of incomplete
/// ones,
/// ".texts-0123456789abcdef.h5.TAG.tmp".
bool is_entry(std::string name) {
  constexpr std::size_t digits = 16;
  for (const std::string ending : {".h5", ".ids.json", ".reference.npy"}) {
    if (const auto end = name.rfind(ending + "."); name.starts_with('.') && name.ends_with(".tmp") && end != name.npos)
      name.erase(end + ending.size());
    if (!name.ends_with(ending) || name.size() < digits + 1 + ending.size()) continue;
    const auto hash = std::string_view(name).substr(name.size() - digits - ending.size(), digits);
    if (name[name.size() - digits - ending.size() - 1] == '-' &&
        hash.find_first_not_of("0123456789abcdef") == hash.npos)
      return true;
  }
  return false;
}

}  // namespace

std::uint64_t token_fingerprint(const std::vector<fs::path>& files, const TextOptions& options) {
  Fingerprint hash;
  for (const auto& file : files) hash.add_data_file(file);
  hash.add_tokenizer(options.tokenizer_name);
  hash.add_samples(options.tokenizer_name, options.field, options.conversations);
  hash.add(std::to_string(options.max_rows));
  if (options.split.is_on()) hash.add(fmt::format("split {} {}", options.split.share, options.split.held_out));
  if (options.cuts_samples()) hash.add(fmt::format("of {} ids", options.row_inputs));
  if (options.layout == TextLayout::stream) hash.add(fmt::format("rows of {}", options.row_inputs));
  return hash.value();
}

TokenCache::TokenCache(fs::path directory) : directory_(std::move(directory)) {
  std::error_code ignored;
  const bool is_new = !fs::exists(directory_, ignored);
  make_directories(directory_);
  if (is_new) create_exclusively(directory_ / "CACHEDIR.TAG", kTag);
}

fs::path TokenCache::entry(const fs::path& data, std::uint64_t fingerprint, std::string_view ending) const {
  constexpr std::size_t most = 100;  // file names have a limit
  return directory_ / fmt::format("{}-{:016x}{}", data.stem().string().substr(0, most), fingerprint, ending);
}

bool TokenCache::holds(const fs::path& entry) {
  std::error_code ignored;
  if (!fs::exists(entry, ignored)) return false;
  const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  ::utimensat(AT_FDCWD, entry.c_str(), times, 0);  // fails for the file of another user, who removes it
  return true;
}

void TokenCache::remove_unused() const {
  try {
    if (read_text_file(directory_ / "CACHEDIR.TAG", 4096) != kTag) return;
  } catch (const Error&) {
    return;
  }
  const auto oldest = ::time(nullptr) - std::chrono::duration_cast<std::chrono::seconds>(kKept).count();
  std::error_code error;
  for (fs::directory_iterator file(directory_, error), end; !error && file != end; file.increment(error)) {
    struct stat status {};
    if (!is_entry(file->path().filename().string()) || ::lstat(file->path().c_str(), &status) != 0) continue;
    std::error_code ignored;
    if (S_ISREG(status.st_mode) && std::max(status.st_atime, status.st_mtime) < oldest)
      fs::remove(file->path(), ignored);
  }
}

EntryClaim::EntryClaim(const fs::path& entry, const std::function<bool()>& stop_wanted,
                       const std::function<void(const std::string&)>& waiting) {
  constexpr auto takeover_after = std::chrono::milliseconds(std::chrono::seconds(90));
  constexpr auto poll = std::chrono::milliseconds(200);
  auto directory = entry;
  directory.replace_filename("." + entry.filename().string() + ".claim");
  ClaimWatch watch(directory, takeover_after);
  for (bool told = false;;) {
    if (const auto generation = watch.try_take()) {
      claim_ = std::make_shared<Claim>(directory, *generation);
      break;
    }
    if (stop_wanted && stop_wanted())
      throw RuntimeFailure("stopped while " + watch.holder() + " was writing " + entry.string());
    if (!told && !watch.holder().empty()) {
      waiting(watch.holder());
      told = true;
    }
    std::this_thread::sleep_for(poll);
  }
  heartbeat_ = std::make_unique<Heartbeat>(takeover_after / 6);
  heartbeat_->add(claim_);
}

EntryClaim::~EntryClaim() {
  heartbeat_.reset();
  if (!claim_->lost()) claim_->end();
}

}  // namespace fsdp
