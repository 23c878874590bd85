#include "lib/base/files/claim.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/process/process_identity.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kReleased = "released";
constexpr std::uint64_t kLongestClaimBytes = 65536;

fs::path claim_file(const fs::path& directory, std::uint64_t generation) {
  return directory / ("claim." + std::to_string(generation));
}

/// Generations of the claims in `directory`, in ascending order. Implausibly large numbers are ignored as planted.
std::vector<std::uint64_t> listed_generations(const fs::path& directory) {
  constexpr std::uint64_t most = 1'000'000'000;
  std::vector<std::uint64_t> listed;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.rfind("claim.", 0) != 0) continue;
    std::uint64_t number = 0;
    const auto* last = name.data() + name.size();
    const auto read = std::from_chars(name.data() + 6, last, number);
    if (read.ec == std::errc() && read.ptr == last && number <= most) listed.push_back(number);
  }
  std::sort(listed.begin(), listed.end());
  return listed;
}

std::uint64_t highest_generation(const fs::path& directory) {
  const auto listed = listed_generations(directory);
  auto highest = listed.empty() ? 0 : listed.back();
  std::error_code error;
  // NFS caches directory listings, so this one may be outdated.
  while (fs::exists(claim_file(directory, highest + 1), error)) ++highest;
  return highest;
}

/// Removes old claims. Keeps the newest 16: a process with an outdated listing could otherwise re-create a removed
/// claim and believe it is the owner.
void remove_old_claims(const fs::path& directory, std::uint64_t newest) {
  constexpr std::uint64_t kept = 16;
  std::error_code ignored;
  for (const auto number : listed_generations(directory)) {
    if (number + kept <= newest) fs::remove(claim_file(directory, number), ignored);
  }
}

/// Time of the last heartbeat. The file is opened first, because NFS then revalidates its attributes with the server.
std::optional<fs::file_time_type> last_beat(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  ::close(fd);
  std::error_code error;
  const auto time = fs::last_write_time(file, error);
  return error ? std::nullopt : std::optional(time);
}

/// Current time of the file system's clock, by which heartbeats are stamped.
std::optional<fs::file_time_type> file_system_now(const fs::path& directory) {
  const auto probe = directory / (".tmp." + unique_name());
  try {
    File::create_new(probe).close();
  } catch (const IoError&) {
    return std::nullopt;
  }
  const auto time = last_beat(probe);
  std::error_code ignored;
  fs::remove(probe, ignored);
  return time;
}

std::string claim_text(const fs::path& directory, std::uint64_t generation) {
  try {
    return read_text(File::open_read_nofollow(claim_file(directory, generation)), kLongestClaimBytes);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

Claim::Claim(fs::path directory, std::uint64_t generation)
    : directory_(std::move(directory)), generation_(generation) {}

Claim::~Claim() {
  if (lost_ || ended_) return;
  try {
    publish_text(claim_file(directory_, generation_), kReleased);
  } catch (const std::exception&) {
    // A successor then waits until the claim is silent, or detects that the process has ended.
  }
}

void Claim::beat() {
  if (ended_) return;
  std::error_code error;
  const bool touched =
      ::utimensat(AT_FDCWD, claim_file(directory_, generation_).c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0;
  if ((!touched && errno == ENOENT) || fs::exists(claim_file(directory_, generation_ + 1), error)) lost_ = true;
}

void Claim::end() {
  ended_ = true;
  std::error_code ignored;
  if (fs::is_symlink(directory_, ignored)) return;  // a planted link: its target must not be removed
  std::vector<fs::path> others;
  for (fs::directory_iterator entry(directory_, ignored), last; !ignored && entry != last; entry.increment(ignored)) {
    if (entry->path().filename().string().rfind("claim.", 0) != 0) others.push_back(entry->path());
  }
  for (const auto& path : others) fs::remove_all(path, ignored);
  // Remove the highest claim last, so that the folder has an owner as long as it has content.
  for (const auto number : listed_generations(directory_)) {
    if (number <= generation_) fs::remove(claim_file(directory_, number), ignored);
  }
  fs::remove(directory_, ignored);
}

OwnerState owner_state(const fs::path& directory, std::uint64_t generation) {
  const auto text = claim_text(directory, generation);
  if (text == kReleased) return OwnerState::gone;
  try {
    return ProcessIdentity::from_json(text).surely_gone() ? OwnerState::gone : OwnerState::silent;
  } catch (const FormatError&) {
    return OwnerState::silent;
  }
}

std::string owner_words(const fs::path& directory, std::uint64_t generation) {
  try {
    return ProcessIdentity::from_json(claim_text(directory, generation)).words();
  } catch (const FormatError&) {
    return "an unknown process";
  }
}

ClaimWatch::ClaimWatch(fs::path directory, std::chrono::milliseconds takeover_after, Clock clock)
    : directory_(std::move(directory)), takeover_after_(takeover_after), clock_(std::move(clock)) {}

bool ClaimWatch::may_be_alive(std::uint64_t generation) {
  if (owner_state(directory_, generation) == OwnerState::gone) return false;
  holder_ = owner_words(directory_, generation);
  const auto beat = last_beat(claim_file(directory_, generation));
  const auto now = clock_();
  if (!beat || generation != seen_generation_ || *beat != seen_beat_) {
    owner_lives_ = beat && generation == seen_generation_;
    seen_generation_ = generation;
    seen_beat_ = beat.value_or(fs::file_time_type{});
    seen_at_ = now;
    // If the claim was silent long before this process started, half of the time is enough. The timestamps alone are
    // not sufficient, because clients with wrong clocks may have set them.
    const auto file_system_time = beat ? file_system_now(directory_) : std::nullopt;
    listen_ =
        file_system_time && *file_system_time - *beat > 10 * takeover_after_ ? takeover_after_ / 2 : takeover_after_;
    return true;
  }
  return now - seen_at_ < listen_;
}

std::optional<std::uint64_t> ClaimWatch::try_take() {
  holder_.clear();
  make_directories(directory_);
  const auto generation = highest_generation(directory_);
  if (generation > 0 && may_be_alive(generation)) return std::nullopt;
  // False too where an owner that finished has removed the folder meanwhile.
  if (!create_exclusively(claim_file(directory_, generation + 1), ProcessIdentity::own().to_json()))
    return std::nullopt;
  remove_old_claims(directory_, generation + 1);
  return generation + 1;
}

Heartbeat::Heartbeat(std::chrono::milliseconds interval)
    : interval_(interval), thread_(start_thread("keeps claims of files alive", [this] {
        return std::jthread([this](const std::stop_token& stop) { run(stop); });
      })) {}

void Heartbeat::add(const std::shared_ptr<Claim>& claim) {
  const std::lock_guard lock(mutex_);
  std::erase_if(claims_, [](const auto& weak) { return weak.expired(); });
  claims_.push_back(claim);
}

void Heartbeat::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, interval_, [] { return false; });
    const auto claims = claims_;
    lock.unlock();
    for (const auto& weak : claims) {
      if (const auto claim = weak.lock()) claim->beat();
    }
    lock.lock();
  }
}

}  // namespace fsdp
