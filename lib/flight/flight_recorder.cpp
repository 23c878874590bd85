#include "lib/flight/flight_recorder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <new>
#include <system_error>

#include "lib/base/files/descriptor.hpp"
#include "lib/base/process/process_identity.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/hash_functions.hpp"

namespace fsdp {
namespace {

std::string reason() { return std::error_code(errno, std::generic_category()).message(); }

/// True for a record that a process of this user has left, which has ended or cannot be running beside this one: a run
/// has one job at a time.
bool is_left_over(const std::filesystem::path& file) {
  const Descriptor old(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  std::uint64_t magic = 0;
  return old.get() >= 0 && ::fstat(old.get(), &status) == 0 && status.st_uid == ::geteuid() &&
         ::read(old.get(), &magic, sizeof(magic)) == static_cast<ssize_t>(sizeof(magic)) && magic == FlightMap::kMagic;
}

/// \param problem  receives why the memory is this process's alone
void* map_memory(std::filesystem::path& file, std::string& problem) {
  constexpr auto kBytes = sizeof(FlightMap);
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const auto alone = [&](const std::string& why) {
    if (!file.empty()) problem = fmt::format("{}: {}", file.string(), why);
    file.clear();
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
  };
  if (file.empty()) return alone("");
  int made = ::open(file.c_str(), kFlags, 0600);
  if (made < 0 && errno == EEXIST && is_left_over(file) && ::unlink(file.c_str()) == 0)
    made = ::open(file.c_str(), kFlags, 0600);
  const Descriptor descriptor(made);
  if (made < 0) return alone(reason());
  // Memory that is not there would be a signal when it is written.
  if (const int error = ::posix_fallocate(made, 0, kBytes); error != 0) {
    ::unlink(file.c_str());
    return alone(std::error_code(error, std::generic_category()).message());
  }
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
  if (memory != MAP_FAILED) return memory;
  const auto why = reason();
  ::unlink(file.c_str());
  return alone(why);
}

template <std::size_t N>
void put(std::array<char, N>& to, std::string_view text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), N - 1));
}

}  // namespace

std::int64_t flight_now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::filesystem::path flight_file(const std::filesystem::path& run_directory, int rank,
                                  const std::filesystem::path& folder) {
  std::error_code error;
  auto whole = std::filesystem::weakly_canonical(run_directory, error);
  if (error) whole = run_directory;
  while (!whole.has_filename() && whole.has_parent_path() && whole != whole.parent_path()) whole = whole.parent_path();
  return folder / fmt::format("{}{}-{:016x}-{}", kFlightFilePrefix, ::geteuid(), fnv1a(whole.string()), rank);
}

void FlightRecorder::Unmap::operator()(FlightMap* map) const { ::munmap(map, sizeof(FlightMap)); }

FlightRecorder::FlightRecorder(const Rank& rank, const std::filesystem::path& file)
    : file_(file), time_ns_(flight_now_ns()) {
  map_.reset(new (map_memory(file_, problem_)) FlightMap);
  map_->rank = rank.rank;
  map_->ranks = rank.ranks;
  map_->clock_offset_ns = rank.clock_offset_ns;
  put(map_->run, rank.run);
  put(map_->process, ProcessIdentity::own().to_json());
  const auto kills = memory_kills_file();
  put(map_->memory_events, kills.string());
  map_->killed_for_memory = memory_kills(kills);
  place_of("");
  map_->magic.store(FlightMap::kMagic, std::memory_order_release);
}

FlightRecorder::~FlightRecorder() {
  if (!file_.empty()) ::unlink(file_.c_str());
}

std::uint64_t FlightRecorder::collectives_of(std::uint8_t group) {
  const std::lock_guard lock(mutex_);
  return lists_[group];
}

void FlightRecorder::set_place(std::int64_t step, std::int64_t micro_batch) {
  const std::lock_guard lock(mutex_);
  step_ = static_cast<std::uint32_t>(step);
  micro_batch_ = static_cast<std::uint16_t>(micro_batch);
}

std::uint16_t FlightRecorder::place_of(std::string_view name) {
  if (const auto found = places_.find(name); found != places_.end()) return found->second;
  const auto place = places_.size();
  if (place >= FlightMap::kNames) return 0;
  put(map_->names[place], name);
  return places_.emplace(name, static_cast<std::uint16_t>(place)).first->second;
}

FlightEvent FlightRecorder::new_event(FlightKind kind) const {
  FlightEvent event;
  event.kind = kind;
  event.begin_ns = flight_now_ns();
  event.step = step_;
  event.micro_batch = micro_batch_;
  if (!names_.empty()) event.name = names_.back().place;
  return event;
}

std::uint64_t FlightRecorder::open(FlightEvent event) {
  event.number = ++number_;
  std::size_t place = 0;
  while (place < open_.size() && open_[place].number != 0) ++place;
  if (place == FlightMap::kOpen) return 0;  // deeper than any job goes
  if (place == open_.size()) open_.emplace_back();
  open_[place] = event;
  map_->open[place].write(event);
  return event.number;
}

void FlightRecorder::begin_work(std::string_view name, std::optional<WorkKind> kind) {
  const std::lock_guard lock(mutex_);
  if (is_frozen_) return;
  const auto outer = names_.empty() ? WorkKind::compute : names_.back().kind;
  names_.push_back({place_of(name), 0, outer});
  if (!kind) return;
  const auto event = new_event(FlightKind::work);
  pass_time(event.begin_ns);
  names_.back().kind = *kind;
  names_.back().number = open(event);
}

void FlightRecorder::end_work() {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (is_frozen_ || names_.empty()) return;
    number = names_.back().number;
    if (number != 0) pass_time(flight_now_ns());
    names_.pop_back();
  }
  end(number);
}

std::uint8_t FlightRecorder::add_group(std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  const auto place = std::min<std::uint64_t>(map_->num_groups.load(), FlightMap::kGroups - 1);
  auto& group = map_->groups[place];
  group.identity = fnv1a({reinterpret_cast<const char*>(members.data()), members.size_bytes()});
  group.size = static_cast<std::int32_t>(members.size());
  map_->num_groups.store(place + 1, std::memory_order_release);
  return static_cast<std::uint8_t>(place);
}

std::uint64_t FlightRecorder::begin(FlightKind kind, std::uint8_t group, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (is_frozen_) return 0;
  auto event = new_event(kind);
  event.group = group;
  event.bytes = bytes;
  event.round = map_->groups[group].rounds.load(std::memory_order_relaxed) + 1;
  const auto number = open(event);
  map_->groups[group].rounds.store(event.round, std::memory_order_release);
  const bool is_text = kind == FlightKind::collection;  // each rank's has a length of its own
  const bool has_tensors = kind >= FlightKind::all_gather && kind <= FlightKind::all_reduce;
  const std::array<std::uint64_t, 4> entry{lists_[group], static_cast<std::uint64_t>(kind), is_text ? 0 : bytes,
                                           has_tensors ? fnv1a(map_->names[event.name].data()) : 0};
  lists_[group] = fnv1a({reinterpret_cast<const char*>(entry.data()), sizeof entry});
  return number;
}

std::uint64_t FlightRecorder::begin_counter(std::string_view name, int peer, std::uint64_t round) {
  const std::lock_guard lock(mutex_);
  if (is_frozen_) return 0;
  auto event = new_event(FlightKind::counter);
  event.name = place_of(name);
  event.wait_ns = event.begin_ns;
  event.peer = peer;
  event.round = static_cast<std::uint32_t>(round);
  const auto number = open(event);
  if (number != 0) {
    pass_time(event.begin_ns);
    ++num_waits_;
  }
  return number;
}

FlightEvent* FlightRecorder::find_open(std::uint64_t number) {
  if (is_frozen_ || number == 0) return nullptr;
  const auto event = std::find_if(open_.begin(), open_.end(), [&](const auto& one) { return one.number == number; });
  return event == open_.end() ? nullptr : &*event;
}

FlightSlot& FlightRecorder::slot_of(const FlightEvent* event) {
  return map_->open[static_cast<std::size_t>(event - open_.data())];
}

void FlightRecorder::wait(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  auto* event = find_open(number);
  if (event == nullptr || event->wait_ns != 0) return;
  event->wait_ns = flight_now_ns();
  pass_time(event->wait_ns);
  ++num_waits_;
  slot_of(event).write(*event);
}

void FlightRecorder::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  auto* event = find_open(number);
  if (event == nullptr) return;
  event->end_ns = flight_now_ns();
  if (event->wait_ns != 0) {
    pass_time(event->end_ns);
    --num_waits_;
  }
  const auto count = map_->num_ended.load(std::memory_order_relaxed);
  map_->ended[count % FlightMap::kEvents].write(*event);
  map_->num_ended.store(count + 1, std::memory_order_release);
  *event = {};
  slot_of(event).clear();
}

void FlightRecorder::pass_time(std::int64_t now_ns) {
  const auto kind = names_.empty() ? WorkKind::compute : names_.back().kind;
  (num_waits_ > 0 ? time_use_.wait_ns : time_use_.of(kind)) += now_ns - time_ns_;
  time_ns_ = now_ns;
}

TimeUse FlightRecorder::time_use() {
  const std::lock_guard lock(mutex_);
  pass_time(flight_now_ns());
  return time_use_;
}

void FlightRecorder::freeze() {
  const std::lock_guard lock(mutex_);
  is_frozen_ = true;
}

void FlightRecorder::set_blocked(std::string_view text) { map_->blocked.write(text); }

}  // namespace fsdp
