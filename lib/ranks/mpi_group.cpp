#include "lib/ranks/mpi_group.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <thread>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/ranks/different_collectives.hpp"
#include "lib/ranks/texts_of_ranks.hpp"

namespace fsdp::detail {
namespace {

struct Elements {
  int count;
  MPI_Datatype type;
};

/// MPI counts are ints. Using the widest element type that divides the block allows slices of up to 16 GiB.
Elements as_elements(std::size_t size_bytes) {
  std::size_t width = 1;
  MPI_Datatype type = MPI_BYTE;
  if (size_bytes % 8 == 0) {
    width = 8;
    type = MPI_UINT64_T;
  } else if (size_bytes % 4 == 0) {
    width = 4;
    type = MPI_UINT32_T;
  } else if (size_bytes % 2 == 0) {
    width = 2;
    type = MPI_UINT16_T;
  }
  const std::size_t count = size_bytes / width;
  if (count > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw RuntimeFailure(fmt::format("a block of {} bytes per rank is too large for one MPI message", size_bytes));
  }
  return {static_cast<int>(count), type};
}

class MpiWork final : public Work {
 public:
  MpiWork(MpiGroup& group, std::vector<MPI_Request> requests, const char* what)
      : group_(group), requests_(std::move(requests)), what_(what) {}
  void wait() override { group_.wait(requests_, what_); }

 private:
  MpiGroup& group_;
  std::vector<MPI_Request> requests_;
  const char* what_;
};

std::vector<int> world_ranks_of(MPI_Comm comm) {
  int size = 0;
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(size)), members(ranks.size());
  std::iota(members.begin(), members.end(), 0);
  MPI_Group here = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_Comm_group(comm, &here);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(here, size, members.data(), world, ranks.data());
  MPI_Group_free(&here);
  MPI_Group_free(&world);
  return ranks;
}

}  // namespace

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  const auto message = fmt::format("{}: {}", call, mpi_error_text(code));
  int kind = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_TRUNCATE)
    throw DifferentCollectives(message +
                               ": another rank sent more than this one expects, in another collective or of another "
                               "size");
  throw RuntimeFailure(message);
}

/// \param code  of a call that completes several requests
void check_requests(int code, std::span<const MPI_Status> statuses, const char* call) {
  int kind = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_IN_STATUS) {
    for (const auto& status : statuses) {
      if (status.MPI_ERROR != MPI_ERR_PENDING) check_mpi(status.MPI_ERROR, call);
    }
  }
  check_mpi(code, call);
}

UniqueComm::~UniqueComm() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (comm_ != MPI_COMM_NULL && finalized == 0 && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void MpiJob::check_wait() {
  constexpr std::chrono::milliseconds kPause{500}, kLate{1000}, kStop{5000};
  const auto now = Clock::now();
  if (now - looked < kPause) return;
  looked = now;
  const auto lasts = [&](bool holds, Clock::time_point& since, std::chrono::milliseconds limit) {
    if (!holds) since = {};
    if (holds && since == Clock::time_point{}) since = now;
    return holds && now - since > limit;
  };
  if (lasts(stop_wanted && stop_wanted(), stopped_since, kStop))
    throw Error(ExitCode::stopped_early,
                "stopped by a signal while this rank waited for others that did not arrive; nothing is lost");
  std::vector<std::string> gone;
  for (const auto& [world_rank, process] : peers) {
    if (process.has_ended())
      gone.push_back(fmt::format("rank {} (process {} on {})", world_rank, process.pid, process.host));
  }
  if (lasts(!gone.empty(), gone_since, kLate)) {
    throw StuckFailure(fmt::format("did not arrive: {}, whose process{} ended; look for {} message above",
                                   fmt::join(gone, ", "), gone.size() == 1 ? " has" : "es have",
                                   gone.size() == 1 ? "its" : "their"));
  }
}

MpiGroup::MpiGroup(UniqueComm comm, const MpiOptions& limits)
    : MpiGroup(std::move(comm), std::make_shared<MpiJob>(limits)) {
  MPI_Comm alarm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(comm_.get(), &alarm), "MPI_Comm_dup");
  job_->alarm = UniqueComm(alarm);
}

MpiGroup::MpiGroup(UniqueComm comm, std::shared_ptr<MpiJob> job) : comm_(std::move(comm)), job_(std::move(job)) {
  MPI_Comm_set_errhandler(comm_.get(), MPI_ERRORS_RETURN);
  check_mpi(MPI_Comm_rank(comm_.get(), &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_.get(), &size_), "MPI_Comm_size");
  world_ranks_ = world_ranks_of(comm_.get());
}

void MpiGroup::know_peers() {
  const auto here = ProcessIdentity::own();
  const auto texts = texts_of_ranks(*this, here.to_json());
  for (int member = 0; member < size_; ++member) {
    auto process = ProcessIdentity::from_json(element(texts, member));
    if (member != rank_ && process.is_comparable(here) && !process.has_ended())
      job_->peers.push_back({world_rank(member), std::move(process)});
  }
}

void MpiGroup::end_waits(std::function<bool()> wanted) {
  job_->stop_wanted = std::move(wanted);
  job_->stopped_since = {};
}

void MpiGroup::wait(std::span<MPI_Request> requests, const char* what) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::vector<MPI_Status> statuses(requests.size());
  for (int spins = 0;; ++spins) {
    int done = 0;
    check_requests(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses.data()), statuses,
                   what);
    if (done != 0) return;
    if (spins < 200) continue;
    const auto waited = Clock::now() - start;
    if (waited < std::chrono::milliseconds(1)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    job_->check_wait();
    // Respond to a rank whose wait began earlier and timed out, so that it does not report this rank as missing.
    if (waited > timeout() || (waited > std::chrono::milliseconds(5) && liveness_probed())) {
      const auto missing = missing_ranks();
      throw StuckFailure(fmt::format(
          "{} did not complete within {} s (--collective-timeout); {}", what,
          std::chrono::duration_cast<std::chrono::seconds>(timeout()).count(),
          missing.empty() ? std::string("every rank is waiting in it: the network lost a message or is stuck")
                          : fmt::format("did not arrive: rank {}", fmt::join(missing, ", "))));
    }
  }
}

bool MpiGroup::liveness_probed() {
  int found = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, 0, job_->alarm.get(), &found, MPI_STATUS_IGNORE);
  return found != 0;
}

std::vector<int> MpiGroup::missing_ranks() {
  const auto everyone = world_ranks_of(job_->alarm.get());
  std::vector<bool> heard(everyone.size(), false);
  for (std::size_t r = 0; r < everyone.size(); ++r) {
    heard[r] = everyone[r] == world_rank(rank_);
    if (heard[r]) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, static_cast<int>(r), 0, job_->alarm.get(), &request);
    MPI_Request_free(&request);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (std::chrono::steady_clock::now() < deadline) {
    int found = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, 0, job_->alarm.get(), &found, &status);
    if (found != 0) {
      MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, 0, job_->alarm.get(), MPI_STATUS_IGNORE);
      element(heard, status.MPI_SOURCE) = true;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::vector<int> members, others;
  for (std::size_t r = 0; r < everyone.size(); ++r) {
    if (heard[r]) continue;
    const bool is_member = std::find(world_ranks_.begin(), world_ranks_.end(), everyone[r]) != world_ranks_.end();
    (is_member ? members : others).push_back(everyone[r]);
  }
  return members.empty() ? others : members;
}

void MpiGroup::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_.get(), &request), "MPI_Ibarrier");
  wait(std::span(&request, 1), "a barrier");
}

bool MpiGroup::barrier_within(std::chrono::milliseconds patience) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(comm_.get(), &request) != MPI_SUCCESS) return false;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int done = 0;
  while (done == 0 && std::chrono::steady_clock::now() < deadline) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done != 0;
}

void MpiGroup::all_reduce(std::span<double> values, Reduce op) {
  // Gather and reduce in rank order, so that every rank gets identical bits, independent of MPI's algorithm.
  const auto count = static_cast<int>(values.size());
  std::vector<double> all(values.size() * static_cast<std::size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallgather(values.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, comm_.get(), &request),
            "MPI_Iallgather");
  wait(std::span(&request, 1), "an agreement of all ranks");
  for (std::size_t i = 0; i < values.size(); ++i) {
    double total = all[i];
    for (std::size_t r = 1; r < static_cast<std::size_t>(size_); ++r) {
      const double other = all[r * values.size() + i];
      total = op == Reduce::sum ? total + other : (op == Reduce::max ? std::max(total, other) : std::min(total, other));
    }
    values[i] = total;
  }
}

void MpiGroup::broadcast(std::span<std::byte> bytes, int root) {
  const auto elements = as_elements(bytes.size());
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(bytes.data(), elements.count, elements.type, root, comm_.get(), &request), "MPI_Ibcast");
  wait(std::span(&request, 1), "a broadcast");
}

std::vector<std::string> MpiGroup::gather(std::string_view text, int root) {
  const auto length = static_cast<int>(text.size());
  std::vector<int> lengths(static_cast<std::size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Igather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, root, comm_.get(), &request), "MPI_Igather");
  wait(std::span(&request, 1), "a gather");
  std::vector<int> starts(lengths.size(), 0);
  std::partial_sum(lengths.begin(), lengths.end() - 1, starts.begin() + 1);
  std::string all;
  if (rank_ == root) all.resize(static_cast<std::size_t>(starts.back() + lengths.back()));
  check_mpi(MPI_Igatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(), MPI_CHAR, root,
                         comm_.get(), &request),
            "MPI_Igatherv");
  wait(std::span(&request, 1), "a gather");
  std::vector<std::string> texts;
  if (rank_ == root) {
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      texts.push_back(all.substr(to_index(starts[r]), static_cast<std::size_t>(lengths[r])));
    }
  }
  return texts;
}

std::unique_ptr<Work> MpiGroup::all_gather(std::span<const GatherBlock> blocks) {
  std::vector<MPI_Request> requests;
  for (const auto& block : blocks) {
    const auto elements = as_elements(block.in.size());
    requests.push_back(MPI_REQUEST_NULL);
    // In an in-place gather, this rank's rows are already there.
    const std::byte* own = block.out.data() + static_cast<std::size_t>(rank_) * block.in.size();
    const void* in = block.in.data() == own ? MPI_IN_PLACE : block.in.data();
    check_mpi(MPI_Iallgather(in, elements.count, elements.type, block.out.data(), elements.count, elements.type,
                             comm_.get(), &requests.back()),
              "MPI_Iallgather");
  }
  return std::make_unique<MpiWork>(*this, std::move(requests), "an all-gather of parameters");
}

std::unique_ptr<Work> MpiGroup::all_to_all(std::span<const ExchangeBlock> blocks) {
  std::vector<MPI_Request> requests;
  for (const auto& block : blocks) {
    const auto elements = as_elements(block.in.size() / static_cast<std::size_t>(size_));
    requests.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Ialltoall(block.in.data(), elements.count, elements.type, block.out.data(), elements.count,
                            elements.type, comm_.get(), &requests.back()),
              "MPI_Ialltoall");
  }
  return std::make_unique<MpiWork>(*this, std::move(requests), "a reduction of gradients");
}

std::unique_ptr<ProcessGroup> MpiGroup::split(int color) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_.get(), color, rank_, &comm), "MPI_Comm_split");
  return std::make_unique<MpiGroup>(UniqueComm(comm), job_);
}

std::unique_ptr<ProcessGroup> MpiGroup::split_by_node() {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm_.get(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &comm), "MPI_Comm_split_type");
  return std::make_unique<MpiGroup>(UniqueComm(comm), job_);
}

std::unique_ptr<PeerMemory> MpiGroup::peer_memory(std::size_t size_bytes, std::size_t num_counters) {
  return make_memfd_peer_memory(*this, size_bytes, num_counters);
}

}  // namespace fsdp::detail
