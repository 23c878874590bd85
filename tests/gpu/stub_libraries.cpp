// Products of cuBLAS and collectives of NCCL: nothing is computed or sent, but the memory that they touch is known.
// Other functions of both are in stub_driver.cpp and stub_symbols.inc.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/stub_capture.hpp"
#include "tests/gpu/stub_log.hpp"
#include "tests/gpu/stub_stall.hpp"

namespace {

using stub::Touched;

struct Workspace {
  const void* data = nullptr;
  std::int64_t bytes = 0;
};
thread_local Workspace workspace;  // given last

/// Element size of a cudaDataType_t (library_types.h).
std::int64_t size_of_data(int type) {
  constexpr int kF64 = 1, kF16 = 2, kBf16 = 14, kE4m3 = 28, kE5m2 = 29;
  return type == kF64 ? 8 : type == kF16 || type == kBf16 ? 2 : type == kE4m3 || type == kE5m2 ? 1 : 4;
}

/// A batch of matrices by columns.
struct Matrices {
  const void* data;
  int type;
  std::int64_t rows, columns, leading, stride;
  bool transposed, written;
};

int product(const char* name, const std::array<Matrices, 3>& factors, std::int64_t batch) {
  std::vector<Touched> touched;
  for (const auto& x : factors) {
    const auto rows = x.transposed ? x.columns : x.rows, columns = x.transposed ? x.rows : x.columns;
    const auto elements = (batch - 1) * x.stride + (columns - 1) * x.leading + rows;
    if (rows > 0 && columns > 0 && batch > 0) touched.push_back({x.data, elements * size_of_data(x.type), x.written});
  }
  if (workspace.data != nullptr) touched.push_back({workspace.data, workspace.bytes, true});
  return stub::issue_of_library(stub::EventKind::product, name, std::move(touched));
}

/// A communicator of NCCL, which frees it with its end: later uses would read freed memory.
struct Communicator {
  std::int64_t ranks;
  std::string name = {};  ///< equal on its ranks, of no other communicator
  bool alive = true;
  int polls = 0;  ///< queries that answer "in progress"; negative: all
  int error = 0;  ///< the answer after them
  bool has_connected = false;
};
/// ncclUniqueId of nccl.h.
struct UniqueId {
  std::array<char, 128> text;
};
constexpr int kSystemError = 2, kInProgress = 7;  // of ncclResult_t
Communicator& checked(void* comm) {
  auto& communicator = *static_cast<Communicator*>(comm);
  if (communicator.alive) return communicator;
  std::fprintf(stderr, "stub driver: a communicator is used after its end\n");
  std::abort();
}
/// The number after a word of FSDP_STUB_NCCL, 1 where there is none; nothing if the word is not there for this rank.
/// Words: init-polls=N, init-forever, init-error, first-polls=N, first-forever, first-error, abort-slow, init-stop,
/// init-kill, wait=MILLISECONDS (of each collective); with @RANK for one rank alone; a comma between them.
std::optional<int> nccl_mode(std::string_view word) {
  const char* text = std::getenv("FSDP_STUB_NCCL");
  const char* rank = std::getenv("PMI_RANK");
  std::istringstream modes(text == nullptr ? "" : text);
  for (std::string mode; std::getline(modes, mode, ',');) {
    const auto at = mode.find('@');
    if (at != std::string::npos && (rank == nullptr || mode.substr(at + 1) != rank)) continue;
    mode = mode.substr(0, at);
    const auto equals = mode.find('=');
    if (mode.substr(0, equals) != word) continue;
    return equals == std::string::npos ? 1 : std::atoi(mode.c_str() + equals + 1);
  }
  return std::nullopt;
}

/// Lets a communicator connect as the modes of `when` say. \return what NCCL's call returns
int connect_as(Communicator& communicator, const std::string& when) {
  communicator.polls = nccl_mode(when + "-forever") ? -1 : nccl_mode(when + "-polls").value_or(0);
  communicator.error = nccl_mode(when + "-error") ? kSystemError : 0;
  return communicator.polls != 0 || communicator.error != 0 ? kInProgress : 0;
}

/// FSDP_STUB_NCCL_TRANSPORT, such as NET/Socket/0: how a line of NCCL's log says that two ranks are connected.
void tell_transport() {
  const char *transport = std::getenv("FSDP_STUB_NCCL_TRANSPORT"), *file = std::getenv("NCCL_DEBUG_FILE");
  if (transport == nullptr || file == nullptr) return;
  std::ofstream(file, std::ios::app) << "host:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via " << transport
                                     << "\n";
}

int end(void* comm) {
  checked(comm).alive = false;
  stub::communicator_ended();
  return 0;
}

/// The calls since ncclGroupStart(), which run as one kernel.
struct Group {
  std::vector<Touched> touched;
  const void* stream = nullptr;
  Communicator* communicator = nullptr;
  std::string calls = {};  ///< kind, count and type of each
};
thread_local Group group;

/// Groups of collectives in the order of their issue: "COMMUNICATOR RANKS: CALLS". Kept where they are asked for.
struct Trace {
  std::mutex mutex;
  bool is_wanted = false;
  std::vector<std::string> groups;
};
Trace& trace() {
  static auto* const the_trace = new Trace;  // never destroyed: communicators may end during static destruction
  return *the_trace;
}
void note(const Group& done) {
  const std::scoped_lock lock(trace().mutex);
  const auto& communicator = *done.communicator;
  if (trace().is_wanted)
    trace().groups.push_back(communicator.name + " " + std::to_string(communicator.ranks) + ":" + done.calls);
}

/// Element size of an ncclDataType_t (nccl.h).
std::int64_t size_of_nccl(int type) {
  constexpr std::array<std::int64_t, 12> kSizes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes.at(static_cast<std::size_t>(type));
}

int collective(const char* kind, std::size_t count, void* comm, const void* from, std::int64_t sent, void* to,
               std::int64_t received, int type, const void* stream) {
  group.communicator = &checked(comm);
  group.calls += std::string(" ") + kind + " " + std::to_string(count) + " of type " + std::to_string(type) + ";";
  const auto size = size_of_nccl(type);
  if (from != nullptr) group.touched.push_back({from, sent * size, false});
  if (to != nullptr) group.touched.push_back({to, received * size, true});
  group.stream = stream;
  return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int cublasSetWorkspace_v2(void*, void* data, std::size_t bytes) {
  workspace = {data, static_cast<std::int64_t>(bytes)};
  return 0;
}
int cublasGemmStridedBatchedEx(void*, int trans_a, int trans_b, int m, int n, int k, const void*, const void* a,
                               int type_a, int lda, long long stride_a, const void* b, int type_b, int ldb,
                               long long stride_b, const void*, void* c, int type_c, int ldc, long long stride_c,
                               int batch, int, int) {
  return product("cublasGemmStridedBatchedEx",
                 {{{a, type_a, m, k, lda, stride_a, trans_a != 0, false},
                   {b, type_b, k, n, ldb, stride_b, trans_b != 0, false},
                   {c, type_c, m, n, ldc, stride_c, false, true}}},
                 batch);
}
int cublasGemmEx(void*, int trans_a, int trans_b, int m, int n, int k, const void*, const void* a, int type_a, int lda,
                 const void* b, int type_b, int ldb, const void*, void* c, int type_c, int ldc, int, int) {
  return product("cublasGemmEx",
                 {{{a, type_a, m, k, lda, 0, trans_a != 0, false},
                   {b, type_b, k, n, ldb, 0, trans_b != 0, false},
                   {c, type_c, m, n, ldc, 0, false, true}}},
                 1);
}
int cublasSgemmStridedBatched(void*, int trans_a, int trans_b, int m, int n, int k, const void*, const void* a, int lda,
                              long long stride_a, const void* b, int ldb, long long stride_b, const void*, void* c,
                              int ldc, long long stride_c, int batch) {
  return product("cublasSgemmStridedBatched",
                 {{{a, 0, m, k, lda, stride_a, trans_a != 0, false},
                   {b, 0, k, n, ldb, stride_b, trans_b != 0, false},
                   {c, 0, m, n, ldc, stride_c, false, true}}},
                 batch);
}
int cublasSgemm_v2(void*, int trans_a, int trans_b, int m, int n, int k, const void*, const void* a, int lda,
                   const void* b, int ldb, const void*, void* c, int ldc) {
  return product("cublasSgemm_v2",
                 {{{a, 0, m, k, lda, 0, trans_a != 0, false},
                   {b, 0, k, n, ldb, 0, trans_b != 0, false},
                   {c, 0, m, n, ldc, 0, false, true}}},
                 1);
}
/// The first bytes of the matrices stand for all, since their descriptors are empty here.
int cublasLtMatmul(void*, void*, const void*, const void* a, void*, const void* b, void*, const void*, const void*,
                   void*, void* d, void*, const void*, void* room, std::size_t room_bytes, const void* stream) {
  std::vector<Touched> touched{{a, 1, false}, {b, 1, false}, {d, 1, true}};
  if (room != nullptr) touched.push_back({room, static_cast<std::int64_t>(room_bytes), true});
  constexpr int kExecutionFailed = 13;  // CUBLAS_STATUS_EXECUTION_FAILED
  return stub::issue({stub::EventKind::product, "cublasLtMatmul"}, std::move(touched), stream) == 0 ? 0
                                                                                                    : kExecutionFailed;
}

// A receive buffer keeps its contents.
int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> ids = 0;
  *id = {};
  std::snprintf(id->text.data(), id->text.size(), "%d.%d", ::getpid(), ++ids);
  return 0;
}
int ncclCommInitRankConfig(void** comm, int ranks, UniqueId id, int, void*) {
  if (nccl_mode("init-kill")) static_cast<void>(::raise(SIGKILL));
  if (nccl_mode("init-stop")) static_cast<void>(::raise(SIGSTOP));
  tell_transport();
  auto* const made = new Communicator{.ranks = ranks, .name = id.text.data()};
  *comm = made;
  stub::communicator_made();
  return connect_as(*made, "init");
}
int ncclCommDestroy(void* comm) { return end(comm); }
int ncclCommAbort(void* comm) {
  while (nccl_mode("abort-slow")) std::this_thread::sleep_for(std::chrono::seconds(1));
  return end(comm);
}
int ncclCommGetAsyncError(void* comm, int* error) {
  auto& communicator = checked(comm);
  *error = communicator.polls != 0 ? kInProgress : communicator.error;
  if (communicator.polls > 0) --communicator.polls;
  return 0;
}
/// FSDP_STUB_NCCL_TEXT: what NCCL says of its last error.
const char* ncclGetLastError(void*) {
  const char* text = std::getenv("FSDP_STUB_NCCL_TEXT");
  return text == nullptr ? "" : text;
}
int ncclGroupStart() {
  group = {};
  return 0;
}
int ncclGroupEnd() {
  stub::collective_queued();
  if (group.touched.empty()) return 0;
  constexpr int kUnhandledCudaError = 1;
  const auto done = std::exchange(group, {});
  note(done);
  std::this_thread::sleep_for(std::chrono::milliseconds(nccl_mode("wait").value_or(0)));
  if (stub::issue({stub::EventKind::collective, "NCCL"}, done.touched, done.stream) != 0) return kUnhandledCudaError;
  return std::exchange(done.communicator->has_connected, true) ? 0 : connect_as(*done.communicator, "first");
}
int ncclAllGather(const void* from, void* to, std::size_t count, int type, void* comm, const void* stream) {
  const auto each = static_cast<std::int64_t>(count);
  return collective("all-gather", count, comm, from, each, to, each * checked(comm).ranks, type, stream);
}
int ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int, void* comm, const void* stream) {
  const auto each = static_cast<std::int64_t>(count);
  return collective("reduce-scatter", count, comm, from, each * checked(comm).ranks, to, each, type, stream);
}
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int, void* comm, const void* stream) {
  const auto all = static_cast<std::int64_t>(count);
  return collective("all-reduce", count, comm, from, all, to, all, type, stream);
}
int ncclSend(const void* from, std::size_t count, int type, int, void* comm, const void* stream) {
  return collective("send", count, comm, from, static_cast<std::int64_t>(count), nullptr, 0, type, stream);
}
int ncclRecv(void* to, std::size_t count, int type, int, void* comm, const void* stream) {
  return collective("receive", count, comm, nullptr, 0, to, static_cast<std::int64_t>(count), type, stream);
}

/// For the program that runs on the driver: from now on groups of collectives are kept.
void fsdp_stub_trace_collectives() {
  const std::scoped_lock lock(trace().mutex);
  trace().is_wanted = true;
  trace().groups.clear();
}
/// Hands out and forgets them.
void fsdp_stub_take_collectives(void (*take)(void*, const char*), void* to) {
  const std::scoped_lock lock(trace().mutex);
  for (const auto& each : std::exchange(trace().groups, {})) take(to, each.c_str());
}

}  // extern "C"
#pragma GCC visibility pop
