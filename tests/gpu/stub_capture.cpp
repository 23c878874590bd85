#include "tests/gpu/stub_capture.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/gpu/stub_card.hpp"
#include "tests/gpu/stub_races.hpp"
#include "tests/gpu/stub_stall.hpp"

namespace stub {
namespace {

struct Node {
  Event event;
  std::vector<Touched> touched;
};
using Nodes = std::vector<Node>;
/// For each stream, the number of its nodes that are known to come before.
using Progress = std::map<Stream, std::size_t>;

struct Capture {
  Stream origin;
  std::thread::id thread;
  cudaStreamCaptureMode mode;
  unsigned long long id;
  bool invalid = false;
  Nodes nodes;
  std::map<Stream, Progress> streams;
};
struct Mark {
  std::shared_ptr<Capture> capture;
  Progress before;
};

struct World {
  std::recursive_mutex mutex;
  std::map<Stream, std::shared_ptr<Capture>> capturing;
  std::map<Happening, Mark> marks;
  std::map<EventKind, Stream> library_streams;
  unsigned long long next_id = 1;
};
World& world() {
  static auto* const the_world = new World;  // never destroyed, because graphs may outlive static objects
  return *the_world;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

std::shared_ptr<Capture> capture_of(Stream stream) {
  const auto found = world().capturing.find(stream);
  return found == world().capturing.end() ? nullptr : found->second;
}

int invalidate(Capture& capture, int code) {
  capture.invalid = true;
  return failed_with(code);
}

/// Returns the capture that forbids unsafe calls of this thread: its own, or a global one of another thread.
std::shared_ptr<Capture> strict_capture() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return nullptr;
  for (const auto& [stream, capture] : world().capturing) {
    const bool mine = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
    const bool everybodys = capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (mine || everybodys) return capture;
  }
  return nullptr;
}

[[noreturn]] void stop(const std::string& name, const char* why) {
  std::fprintf(stderr, "stub driver: %s: %s\n", name.c_str(), why);
  std::abort();
}

std::size_t refused_node() {
  const char* text = std::getenv("FSDP_STUB_CAPTURE");
  return text == nullptr ? 0 : std::strtoul(text, nullptr, 10);
}

void merge(Progress& into, const Progress& from) {
  for (const auto& [stream, count] : from) into[stream] = std::max(into[stream], count);
}

/// True if the capturing stream has waited for all work that the capture put on other streams.
bool joined(const Capture& capture) {
  const auto& known = capture.streams.at(capture.origin);
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const auto& one) {
    const auto& [stream, progress] = one;
    const auto asked = progress.find(stream), seen = known.find(stream);
    return stream == capture.origin ||
           (seen != known.end() && asked != progress.end() && seen->second == asked->second);
  });
}

Nodes& nodes_of(const void* graph) { return *static_cast<Nodes*>(const_cast<void*>(graph)); }

}  // namespace

int issue(Event event, std::vector<Touched> touched, Stream stream) {
  if (!captures(stream)) queue_entry(stream);
  const std::scoped_lock lock(world().mutex);
  const auto capture = capture_of(stream);
  if (capture == nullptr) {
    for (const auto& [other, theirs] : world().capturing) {
      if (theirs->thread == std::this_thread::get_id()) stop(event.name, "asked for beside the stream that captures");
    }
    races::ran(event.name, touched, stream);
    log().add(std::move(event));
    return cudaSuccess;
  }
  if (capture->invalid) return failed_with(cudaErrorStreamCaptureInvalidated);
  if (capture->nodes.size() + 1 == refused_node()) return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  capture->nodes.push_back({std::move(event), std::move(touched)});
  ++capture->streams[stream][stream];
  return cudaSuccess;
}

Stream library_stream(EventKind kind) {
  const std::scoped_lock lock(world().mutex);
  return world().library_streams[kind];
}

int issue_of_library(EventKind kind, const char* name, std::vector<Touched> touched) {
  constexpr int kExecutionFailed = 13;  // CUBLAS_STATUS_EXECUTION_FAILED
  return issue({kind, name}, std::move(touched), library_stream(kind)) == cudaSuccess ? 0 : kExecutionFailed;
}

void set_library_stream(EventKind kind, Stream stream) {
  const std::scoped_lock lock(world().mutex);
  world().library_streams[kind] = stream;
}

bool captures(Stream stream) {
  const std::scoped_lock lock(world().mutex);
  return capture_of(stream) != nullptr;
}

int refuse_unsafe() {
  const std::scoped_lock lock(world().mutex);
  const auto capture = strict_capture();
  return capture == nullptr ? cudaSuccess : invalidate(*capture, cudaErrorStreamCaptureUnsupported);
}

int refuse_wait(Stream stream) {
  const std::scoped_lock lock(world().mutex);
  const auto capture = capture_of(stream);
  return capture == nullptr ? refuse_unsafe() : invalidate(*capture, cudaErrorStreamCaptureUnsupported);
}

int refuse_wait_for(Happening event) {
  const std::scoped_lock lock(world().mutex);
  const auto found = world().marks.find(event);
  return found == world().marks.end() ? refuse_unsafe() : invalidate(*found->second.capture, cudaErrorCapturedEvent);
}

void recorded(Happening event, Stream stream) {
  const std::scoped_lock lock(world().mutex);
  world().marks.erase(event);
  const auto capture = capture_of(stream);
  if (capture == nullptr) return races::recorded(event, stream);
  world().marks[event] = {capture, capture->streams[stream]};
}

int waits(Stream stream, Happening event) {
  const std::scoped_lock lock(world().mutex);
  const auto mark = world().marks.find(event);
  const auto mine = capture_of(stream);
  if (mark == world().marks.end())
    return mine == nullptr ? cudaSuccess : invalidate(*mine, cudaErrorStreamCaptureIsolation);
  const auto& capture = mark->second.capture;
  if (mine != nullptr && mine != capture) return invalidate(*mine, cudaErrorStreamCaptureMerge);
  world().capturing[stream] = capture;
  auto& progress = capture->streams[stream];
  progress.try_emplace(stream, 0);
  merge(progress, mark->second.before);
  return cudaSuccess;
}

void forget(Happening event) {
  const std::scoped_lock lock(world().mutex);
  world().marks.erase(event);
}

}  // namespace stub

using namespace stub;

namespace {

/// \param id, graph  may be null
cudaError_t tell(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph) {
  const std::scoped_lock lock(world().mutex);
  const auto capture = capture_of(stream);
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (capture == nullptr) return cudaSuccess;
  if (id != nullptr) *id = capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(&capture->nodes);
  return cudaSuccess;
}
/// The tests do not read the nodes that the next one follows.
void tell_no_nodes(const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, std::size_t* number) {
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (number != nullptr) *number = 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return tell(stream, status, nullptr, nullptr);
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     std::size_t* number) {
  tell_no_nodes(nodes, edges, number);
  return tell(stream, status, id, graph);
}
#else  // in CUDA 12 the header renames this function to its second version, and the third one tells edges, too
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, std::size_t* number) {
  tell_no_nodes(nodes, nullptr, number);
  return tell(stream, status, id, graph);
}
cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                        cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                        const cudaGraphEdgeData** edges, std::size_t* number) {
  tell_no_nodes(nodes, edges, number);
  return tell(stream, status, id, graph);
}
#endif
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const std::scoped_lock lock(world().mutex);
  if (stream == nullptr) return static_cast<cudaError_t>(failed_with(cudaErrorStreamCaptureUnsupported));
  if (capture_of(stream) != nullptr) return static_cast<cudaError_t>(failed_with(cudaErrorIllegalState));
  auto capture =
      std::make_shared<Capture>(Capture{stream, std::this_thread::get_id(), mode, world().next_id++, false, {}, {}});
  capture->streams[stream];
  world().capturing[stream] = std::move(capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::scoped_lock lock(world().mutex);
  *graph = nullptr;
  const auto capture = capture_of(stream);
  if (capture == nullptr || capture->origin != stream)
    return static_cast<cudaError_t>(failed_with(cudaErrorIllegalState));
  std::erase_if(world().capturing, [&](const auto& one) { return one.second == capture; });
  std::erase_if(world().marks, [&](const auto& one) { return one.second.capture == capture; });
  int code = cudaSuccess;
  if (capture->thread != std::this_thread::get_id()) code = cudaErrorStreamCaptureWrongThread;
  if (!joined(*capture)) code = cudaErrorStreamCaptureUnjoined;
  if (capture->invalid) code = cudaErrorStreamCaptureInvalidated;
  if (code != cudaSuccess) return static_cast<cudaError_t>(failed_with(code));
  *graph = reinterpret_cast<cudaGraph_t>(new Nodes(std::move(capture->nodes)));
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* number) {
  *number = nodes_of(graph).size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  *ready = reinterpret_cast<cudaGraphExec_t>(new Nodes(nodes_of(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t stream) {
  const std::scoped_lock lock(world().mutex);
  // An upload cannot be captured into another graph.
  return capture_of(stream) == nullptr ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &nodes_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete &nodes_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  Event launch{EventKind::graph, "graph"};
  std::vector<Touched> all;
  for (const auto& node : nodes_of(graph)) {
    for (const auto& touched : node.touched) {
      const bool on_device = memory().contains(touched.data);
      if (on_device && !memory().holds(touched.data, static_cast<std::size_t>(touched.bytes)))
        stop(node.event.name, "a graph goes on using memory that was given back");
    }
    launch.bytes += node.event.bytes;
    all.insert(all.end(), node.touched.begin(), node.touched.end());
  }
  return static_cast<cudaError_t>(issue(std::move(launch), std::move(all), stream));
}

}  // extern "C"
#pragma GCC visibility pop
