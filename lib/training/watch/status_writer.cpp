#include "lib/training/watch/status_writer.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <new>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/process/answer_within.hpp"
#include "lib/base/process/scheduler.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/compute/device/nvml.hpp"
#include "lib/flight/flight_recorder.hpp"
#include "lib/reports/runs/job_flights.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;
constexpr double kUsualInterval_seconds = 5, kMostFiles_perSecond = 20;
constexpr double kFirstInterval_seconds = 1;  // until the first file
constexpr double kTurn_seconds = 1;
// Events of the past in a file: a few, and many where the job may be stuck.
constexpr double kLongStep_seconds = 15;
constexpr std::size_t kFewEvents = 8, kManyEvents = 256, kMostEvents_perNode = 16384;

double processor_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Resident set of this process now: the second number of /proc/self/statm, in pages.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0;
  if (!(file >> all >> resident)) return RankStatus::kUnknown;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

/// Measures the process and its GPU.
class Sampler {
 public:
  explicit Sampler(std::unique_ptr<NvmlGpu> gpu) : gpu_(std::move(gpu)) {}

  void sample(RankStatus& status) {
    struct rusage usage {};
    if (::getrusage(RUSAGE_SELF, &usage) == 0) {
      const auto now = std::chrono::steady_clock::now();
      const double seconds = processor_seconds(usage);
      status.cores = (seconds - seconds_) / std::max(1e-3, std::chrono::duration<double>(now - time_).count());
      status.peak_resident_bytes = 1024.0 * static_cast<double>(usage.ru_maxrss);
      seconds_ = seconds;
      time_ = now;
    }
    status.resident_bytes = resident_bytes();
    // The kernel counts both lazily, and the peak less exactly.
    status.peak_resident_bytes = std::max(status.peak_resident_bytes, status.resident_bytes);
    if (gpu_ == nullptr) return;
    const auto reading = gpu_->read();
    status.gpu_use = reading.use.value_or(RankStatus::kUnknown);
    status.card_bytes = reading.used_bytes.value_or(RankStatus::kUnknown);
    status.watts = reading.watts.value_or(RankStatus::kUnknown);
    status.celsius = reading.celsius.value_or(RankStatus::kUnknown);
  }

 private:
  std::unique_ptr<NvmlGpu> gpu_;
  std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
  double seconds_ = [] {
    struct rusage usage {};
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? processor_seconds(usage) : 0;
  }();
};

/// Replaces a file in a folder that is there. Without fsync(), of which a shared file system bears few: after a power
/// failure the text is of no use.
void replace_unsynced(const fs::path& path, const std::string& text) {
  const auto temporary = path.parent_path() / ("." + path.filename().string());
  std::error_code error;
  fs::remove(temporary, error);  // of a job that was killed
  try {
    auto file = File::create_new(temporary);
    file.write(text);
    file.close();
  } catch (const IoError&) {
    fs::remove(temporary, error);
    throw;
  }
  fs::rename(temporary, path, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  throw IoError(path.string() + ": cannot be replaced: " + error.message());
}

}  // namespace

StatusWriter::StatusWriter(ProcessGroup& world, fs::path run_directory, const DeviceBackend* backend, int device,
                           const RunFolder& folder, const Logger& log)
    : run_directory_(std::move(run_directory)),
      folder_(run_directory_ / kStatusFolder),
      recorder_(world.recorder()),
      backend_(backend),
      device_(device),
      rank_(world.rank()),
      first_rank_(rank_),
      has_others_(world.size() > 1),
      run_folder_(folder),
      log_(log) {
  if (backend_ != nullptr) {
    const auto info = backend_->info(device_);
    gpu_uuid_ = info.uuid;
    gpu_bus_id_ = info.pci_bus_id;
  }
  const auto node = world.split_by_node();
  memory_ = node->peer_memory(sizeof(Slot) * static_cast<std::size_t>(node->size()), 1);
  if (memory_ != nullptr) {
    node_rank_ = node->rank();
    node_size_ = node->size();
    first_rank_ = static_cast<int>(node->all_reduce(rank_, Reduce::min));
  } else {
    alone_ = std::make_unique<std::byte[]>(sizeof(Slot));
  }
  flights_.emplace(run_directory_);
  const double files = world.all_reduce(node_rank_ == 0 ? 1 : 0, Reduce::sum);
  interval_seconds_ = std::max(kUsualInterval_seconds, files / kMostFiles_perSecond);
  try {
    thread_ = start_thread("looks at what a rank uses",
                           [this] { return std::jthread([this](const std::stop_token& token) { run(token); }); });
    watch_ = start_thread("watches a rank's main thread",
                          [this] { return std::jthread([this](const std::stop_token& token) { watch(token); }); });
  } catch (const RuntimeFailure& failure) {
    log_.warning(fmt::format("no figures of rank {} will be shown: {}", rank_, failure.what()), Remedy::of_watch);
  }
}

StatusWriter::~StatusWriter() { stop(); }

void StatusWriter::stop() {
  for (auto* thread : {&thread_, &watch_}) {
    thread->request_stop();
    if (thread->joinable()) thread->join();
  }
}

StatusWriter::Slot& StatusWriter::slot(int node_rank) {
  auto* slots = memory_ != nullptr ? memory_->data() : alone_.get();
  return *std::launder(reinterpret_cast<Slot*>(slots + sizeof(Slot) * static_cast<std::size_t>(node_rank)));
}

void StatusWriter::after_step(const StepReport& step, bool) {
  const double now = seconds_since(begin_);
  step_ = static_cast<double>(step.step);
  step_end_ = now;
  is_open_ = run_folder_.is_open();
  if (backend_ == nullptr || (looked_at_ >= 0 && now - looked_at_ < kFirstInterval_seconds)) return;
  looked_at_ = now;
  const auto memory = backend_->memory(device_);  // not from the other thread
  gpu_bytes_ = static_cast<double>(memory.reserved_bytes);
  peak_gpu_bytes_ = static_cast<double>(memory.reserved_peak_bytes);
}

void StatusWriter::run(const std::stop_token& token) {
  ::pthread_setname_np(::pthread_self(), "status");
  auto use_time = std::chrono::steady_clock::now();
  std::int64_t waited_ns = 0;
  Sampler sampler(backend_ != nullptr ? NvmlGpu::open(gpu_uuid_, gpu_bus_id_) : nullptr);
  std::unique_lock lock(mutex_);
  for (bool is_written = false;;) {
    const auto wait = std::chrono::duration<double>(is_written ? interval_seconds_ : kFirstInterval_seconds);
    wake_.wait_for(lock, token, wait, [] { return false; });
    if (token.stop_requested()) return;
    RankStatus status;
    status.rank = rank_;
    sampler.sample(status);
    status.step = step_;
    if (std::isfinite(status.step)) status.step_age_seconds = seconds_since(begin_) - step_end_;
    if (recorder_ != nullptr && has_others_ && backend_ == nullptr) {
      const auto now = std::chrono::steady_clock::now();
      const auto before_ns = std::exchange(waited_ns, recorder_->time_use().wait_ns);
      const auto spent = std::chrono::duration<double, std::nano>(now - std::exchange(use_time, now)).count();
      status.wait_share = std::min(1.0, static_cast<double>(waited_ns - before_ns) / spent);
    }
    status.gpu_bytes = gpu_bytes_;
    status.peak_gpu_bytes = peak_gpu_bytes_;
    auto& local_slot = slot(node_rank_);
    for (std::size_t i = 0; i < kRankStatusFields.size(); ++i)
      local_slot.values[i] = status.*kRankStatusFields[i].field;
    local_slot.is_there = 1;
    if (!is_open_) continue;
    is_written = true;
    if (writes()) write();
  }
}

void StatusWriter::watch(const std::stop_token& token) {
  ::pthread_setname_np(::pthread_self(), "watch");
  std::mutex mutex;
  std::unique_lock lock(mutex);
  for (;;) {
    watch_wake_.wait_for(lock, token, std::chrono::duration<double>(kTurn_seconds), [] { return false; });
    if (token.stop_requested()) return;
    if (recorder_ != nullptr) recorder_->set_blocked(main_thread_.look());
    if (tell_signal_.asked()) tell();
  }
}

bool StatusWriter::writes() {
  if (node_rank_ == 0) return true;
  const auto flights = flights_->read(0);
  for (int i = 0; i < node_rank_; ++i) {
    const auto& other = slot(i);
    if (other.is_there == 0) return false;
    const auto rank = static_cast<int>(other.values.front());  // the first of kRankStatusFields
    const auto flight =
        std::find_if(flights.begin(), flights.end(), [&](const auto& known) { return known.rank == rank; });
    if (flight == flights.end() || !(flight->has_ended() || flight->is_stopped())) return false;
  }
  return true;
}

void StatusWriter::tell() {
  const auto flights = flights_of_run(run_directory_, FlightMap::kEvents);
  const auto verdict = verdict_of(flights, kTurn_seconds);
  log_.warning("why       " + verdict.text);  // before the file, since the file system may be what is stuck
  if (!is_open_) return;
  const auto file = write_stuck_file(run_directory_, verdict, flights);
  if (!file.problem.empty()) log_.warning(file.problem);
  if (file.is_ours && file.problem.empty()) log_.warning("why       what each rank did: " + file.path.string());
}

void StatusWriter::write() try {
  NodeStatus node{
      .host = host_name(), .every_seconds = interval_seconds_, .age_seconds = 0, .ranks = {}, .flights = {}};
  double age_seconds = 0;
  for (int i = 0; i < node_size_; ++i) {
    const auto& from = slot(i);
    if (from.is_there == 0) continue;
    auto& status = node.ranks.emplace_back();
    for (std::size_t k = 0; k < kRankStatusFields.size(); ++k) status.*kRankStatusFields[k].field = from.values[k];
    if (status.step_age_seconds > age_seconds) age_seconds = status.step_age_seconds;
  }
  const auto most = std::min(age_seconds > kLongStep_seconds ? kManyEvents : kFewEvents,
                             kMostEvents_perNode / static_cast<std::size_t>(node_size_));
  node.flights = flights_->read(most);
  if (node.flights.empty() && recorder_ != nullptr) node.flights.push_back(read_flight(recorder_->map(), most));
  // A file system that does not answer must not keep this thread, for which the end of the job waits.
  if (written_.valid() && written_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  written_ = ask_apart([folder = folder_, name = status_file_name(first_rank_), text = to_json_text(node)] {
    std::error_code error;
    fs::create_directory(folder, error);  // not the run's folder, which may have been removed
    if (fs::exists(folder.parent_path(), error)) replace_unsynced(folder / name, text);
  });
  if (written_.wait_for(kLookAtFolder) == std::future_status::ready) written_.get();
} catch (const std::exception& failure) {
  if (!std::exchange(has_warned_, true))
    log_.warning(fmt::format("{}; training goes on, and older figures are shown", failure.what()), Remedy::of_watch);
}

void StatusWriter::remove() {
  stop();
  if (node_rank_ != 0 || !is_open_) return;
  std::error_code ignored;
  fs::remove(folder_ / status_file_name(first_rank_), ignored);
  ::rmdir(folder_.c_str());  // unless files of other nodes are in it
}

}  // namespace fsdp::detail
