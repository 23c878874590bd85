#include "apps/bf16check/shared_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/files/temporary_directory.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// \return the median of the seconds that `action` takes
double median_seconds(int times, const std::function<void()>& action) {
  std::vector<double> taken;
  for (int i = 0; i < times; ++i) {
    const auto start = Clock::now();
    action();
    taken.push_back(seconds_since(start));
  }
  std::nth_element(taken.begin(), taken.begin() + times / 2, taken.end());
  return taken[static_cast<std::size_t>(times / 2)];
}

/// Waits until `file` holds `text`. \return the seconds that it took; -1 when it does not within 10 s
double seconds_until(const std::filesystem::path& file, std::string_view text) {
  constexpr double kLimit = 10;
  const auto start = Clock::now();
  while (seconds_since(start) < kLimit) {
    try {
      if (read_text_file(file) == text) return seconds_since(start);
    } catch (const Error&) {  // not there yet
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return -1;
}

/// The worst answer of seconds_until() over the ranks, and who did not see the file.
double slowest(ProcessGroup& group, double mine, int& blind) {
  const double without = group.size();
  const auto first = group.all_reduce(mine < 0 ? group.rank() : without, Reduce::min);
  if (first < without) blind = static_cast<int>(first);
  const auto most = group.all_reduce(mine, Reduce::max);
  return first < without ? -1 : most;
}

/// A lock of a whole file, which ends with the object.
class FileLock {
 public:
  /// NFS locks exclusively what is open for writing only.
  explicit FileLock(const std::filesystem::path& file) : file_(File::open_write(file)) {
    if (::flock(file_.fd(), LOCK_EX | LOCK_NB) != 0) error_ = errno;
  }
  int error() const { return error_; }

 private:
  File file_;
  int error_ = 0;
};

}  // namespace

std::string file_system_type(const std::filesystem::path& path, const std::string& mountinfo) {
  std::string type;
  std::size_t longest = 0;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    // "36 35 98:0 /root /mount/point options [fields] - type source options" (proc_pid_mountinfo(5))
    std::istringstream words(line);
    std::string skipped, point, word;
    words >> skipped >> skipped >> skipped >> skipped >> point;
    while (words >> word && word != "-") continue;
    if (!(words >> word)) continue;
    const bool holds = point == "/" || path == point || path.string().starts_with(point + "/");
    if (holds && point.size() >= longest) {  // a later mount covers an earlier one
      longest = point.size();
      type = word;
    }
  }
  return type;
}

SharedFolderFacts examine_shared_folder(ProcessGroup& group, const std::filesystem::path& folder) {
  SharedFolderFacts facts;
  const bool first = group.rank() == 0;
  const std::string old_text = "first\n", new_text = "second\n";
  const std::filesystem::path place = text_of_root(group, [&] {
    const auto made = folder / fmt::format(".fsdp-launch-{}", unique_name());
    std::error_code error;
    if (!std::filesystem::create_directories(made, error))
      throw IoError(fmt::format("{}: cannot be made: {}", made.string(), error.message()));
    return made.string();
  });
  const TemporaryDirectory at_end(place, first);
  const auto file = place / "file";
  run_agreed(group, [&] {
    if (!first) return;
    std::ostringstream mounts;
    mounts << std::ifstream("/proc/self/mountinfo").rdbuf();  // whose size is 0
    facts.type = file_system_type(std::filesystem::canonical(folder), mounts.str());
    auto written = File::create_new(place / "large");
    const std::string block(1 << 20, 'x');
    facts.sync_seconds = median_seconds(5, [&] {
      written.write(block);
      written.sync();
    });
    replace_file(file, old_text);
  });
  facts.appears = slowest(group, seconds_until(file, old_text), facts.blind);
  if (facts.blind < 0) {
    group.barrier();
    run_agreed(group, [&] {
      if (first) replace_file(file, new_text);
    });
    facts.replaced = slowest(group, seconds_until(file, new_text), facts.blind);
  }
  const auto ask = [missing = place / "no such file"] {
    struct stat about {};
    [[maybe_unused]] const int found = ::stat(missing.c_str(), &about);
  };
  facts.stat_seconds = group.all_reduce(median_seconds(200, ask), Reduce::max);
  if (facts.blind < 0) {
    std::unique_ptr<FileLock> lock;
    if (first) lock = std::make_unique<FileLock>(file);
    const int failed = static_cast<int>(group.all_reduce(lock ? lock->error() : 0, Reduce::max));
    if (failed != 0) {
      facts.lock_error = std::strerror(failed);
    } else {
      // A rank alone is its own rival: locks belong to open files.
      const bool kept_out = (first && group.size() > 1) || FileLock(file).error() == EWOULDBLOCK;
      facts.locks = every_rank(group, kept_out);
    }
  }
  group.barrier();
  return facts;
}

}  // namespace fsdp
