#include "lib/engine/collectives/nccl/nccl_comm.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>
#include <future>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "lib/base/error.hpp"

namespace fsdp::detail {
namespace {

constexpr std::array<std::pair<c10::ScalarType, ncclDataType_t>, 9> kTypes{{
    {c10::ScalarType::Float, ncclFloat32},
    {c10::ScalarType::BFloat16, ncclBfloat16},
    {c10::ScalarType::Half, ncclFloat16},
    {c10::ScalarType::Double, ncclFloat64},
    {c10::ScalarType::Long, ncclInt64},
    {c10::ScalarType::Int, ncclInt32},
    {c10::ScalarType::Char, ncclInt8},
    {c10::ScalarType::Byte, ncclUint8},
    {c10::ScalarType::Bool, ncclUint8},  // only gathered, never summed
}};

bool accepted(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// \return NCCL's explanation of the last error of any communicator; `comm` may be null
std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  std::string text = ncclGetErrorString(result);
  if (detail != nullptr && *detail != '\0') text += fmt::format(" ({})", detail);
  if (result == ncclInvalidUsage) text += "; each rank needs a GPU of its own";
  if (result == ncclRemoteError) text += "; look for the message of the rank that failed";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

void check_nccl(ncclResult_t result, const char* call, ncclComm_t comm) {
  if (!accepted(result)) throw RuntimeFailure(fmt::format("{} failed: {}", call, nccl_text(result, comm)));
}

/// Yields the core, for longer the longer the wait lasts, because NCCL's own threads may need it.
void pause(std::chrono::steady_clock::duration waited) {
  if (waited < std::chrono::microseconds(200)) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(waited < std::chrono::milliseconds(20) ? 20 : 200));
  }
}

long seconds(std::chrono::milliseconds time) {
  return static_cast<long>(std::chrono::duration_cast<std::chrono::seconds>(time).count());
}

/// \return rank 0's NCCL id on every rank. If rank 0 fails, all ranks throw, so that none waits for an id forever.
ncclUniqueId shared_id(ProcessGroup& group) {
  struct Message {
    ncclResult_t result = ncclSuccess;
    ncclUniqueId id{};
  } message;
  if (group.rank() == 0) message.result = ncclGetUniqueId(&message.id);
  group.broadcast(std::as_writable_bytes(std::span(&message, 1)), 0);
  if (message.result != ncclSuccess) {
    throw RuntimeFailure(fmt::format(
        "NCCL does not start on rank {}: {}", group.world_rank(0),
        group.rank() == 0 ? nccl_text(message.result, nullptr) : std::string(ncclGetErrorString(message.result))));
  }
  return message.id;
}

}  // namespace

ncclDataType_t nccl_type(c10::ScalarType type) {
  for (const auto& [torch_type, nccl] : kTypes) {
    if (torch_type == type) return nccl;
  }
  throw std::logic_error(std::string("NCCL cannot carry ") + c10::toString(type));
}

NcclComm::NcclComm(ProcessGroup& group, int device)
    : group_(group),
      rank_(group.rank()),
      size_(group.size()),
      device_(device),
      timeout_(group.timeout()),
      exceptions_at_birth_(std::uncaught_exceptions()) {
  for (int member = 0; member < size_; ++member) world_ranks_.push_back(group.world_rank(member));
  try {
    connect(group);
  } catch (...) {
    abort_within(std::chrono::seconds(10));  // the destructor does not run when the constructor throws
    throw;
  }
}

NcclComm::~NcclComm() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_birth_;
  if (!unwinding && !failed_ && flushed_within(std::min(timeout_, std::chrono::milliseconds(60000)))) {
    static_cast<void>(ncclCommDestroy(comm_));
    return;
  }
  // The peers may have died, and an orderly end would wait for them.
  abort_within(std::chrono::seconds(10));
}

void NcclComm::connect(ProcessGroup& group) {
  ncclUniqueId id = shared_id(group);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check_nccl(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig", nullptr);
  wait_while_in_progress("connecting the ranks");
}

std::shared_ptr<UniqueEvent> NcclComm::submit(const CollectiveLabel& label, const UniqueEvent& ready,
                                              const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& calls) {
  check();
  drop_finished();
  ready.make_wait(stream_.get());
  check_nccl(ncclGroupStart(), "ncclGroupStart", comm_);
  const auto queued = calls(comm_, stream_.get());
  // Close the group even after a failed call; otherwise the open group would absorb all later calls.
  const auto closed = ncclGroupEnd();
  if (!accepted(queued) || !accepted(closed)) {
    fail(fmt::format("the {} was refused: {}", label.kind, nccl_text(accepted(queued) ? closed : queued, comm_)));
  }
  // An event recorded on the stream follows the collective's kernels only once NCCL has queued them.
  wait_while_in_progress(fmt::format("queueing the {}", label.kind));
  auto done = std::make_shared<UniqueEvent>();
  done->record(stream_.get());
  pending_.push_back({done, label, ++num_submitted_});
  return done;
}

void NcclComm::wait_while_in_progress(const std::string& what) {
  const auto start = Clock::now();
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) fail(fmt::format("{} failed: {}", what, nccl_text(state, comm_)));
    const auto waited = Clock::now() - start;
    if (waited > timeout_) {
      fail(fmt::format("{} took longer than {} s (--collective-timeout): a rank failed, hangs or cannot be reached",
                       what, seconds(timeout_)));
    }
    pause(waited);
  }
}

void NcclComm::check() {
  ncclResult_t state = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
  if (!accepted(state)) fail("a collective failed: " + nccl_text(state, comm_));
}

void NcclComm::drop_finished() {
  while (!pending_.empty() && pending_.front().done->reached()) pending_.pop_front();
}

bool NcclComm::poll() {
  drop_finished();
  if (pending_.empty()) return true;
  check();
  const auto& first = pending_.front();
  if (watched_ != first.number) {
    watched_ = first.number;
    watched_since_ = Clock::now();
  }
  const auto waited = Clock::now() - watched_since_;
  // A rank that has waited longer is taking a roll call: answer it, so that it does not count this rank as missing.
  if (waited > timeout_ || (waited > std::chrono::milliseconds(5) && group_.roll_called())) {
    const auto missing = group_.missing_ranks();
    fail(fmt::format("{} number {} ({} tensors, {} bytes) made no progress within {} s (--collective-timeout){}",
                     first.label.kind, first.number, first.label.tensors, first.label.bytes, seconds(timeout_),
                     missing.empty() ? "" : fmt::format("; did not answer: rank {}", fmt::join(missing, ", "))));
  }
  return false;
}

void NcclComm::fail(const std::string& what) {
  failed_ = true;
  throw RuntimeFailure(
      fmt::format("NCCL on device {}, among world ranks {}: {}", device_, fmt::join(world_ranks_, ","), what));
}

bool NcclComm::flushed_within(std::chrono::milliseconds limit) noexcept {
  if (!accepted(ncclCommFinalize(comm_))) return false;
  const auto start = Clock::now();
  for (;;) {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
    if (state == ncclSuccess) return true;
    const auto waited = Clock::now() - start;
    if (state != ncclInProgress || waited > limit) return false;
    pause(waited);
  }
}

void NcclComm::abort_within(std::chrono::milliseconds limit) noexcept {
  if (comm_ == nullptr) return;
  // ncclCommAbort itself may hang when peers have died, but the program must still print its message and exit. So the
  // abort runs in a thread of its own, which is abandoned if it takes too long.
  try {
    std::packaged_task<void()> task([comm = comm_] { static_cast<void>(ncclCommAbort(comm)); });
    auto done = task.get_future();
    std::thread(std::move(task)).detach();
    done.wait_for(limit);
  } catch (...) {
    static_cast<void>(ncclCommAbort(comm_));
  }
}

}  // namespace fsdp::detail
