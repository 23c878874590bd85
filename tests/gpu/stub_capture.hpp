#pragma once
// Streams whose work is captured into graphs, and the calls that a driver refuses during a capture.
//
// A captured launch keeps its arguments: at each launch of the graph, the memory that copies and this project's kernels
// touch must still be allocated. Refused, as by CUDA: waiting for captured work, and queries of it; allocating and
// freeing, unless the thread has allowed it (cudaThreadExchangeStreamCaptureMode); pageable host memory; events from
// before the capture; streams that do not join again. Refused although CUDA would run it at once: work on another
// stream by a capturing thread, because no replay would repeat it. FSDP_STUB_CAPTURE=N also refuses the Nth launch of
// a capture.
#include <vector>

#include "tests/gpu/stub_log.hpp"

namespace stub {

using Stream = const void*;
using Happening = const void*;  ///< a CUDA event

/// Adds the event to the log, or to the graph that the stream captures. \return CUDA's error; 0 if none
int issue(Event event, std::vector<Touched> touched, Stream stream);
/// Like issue(), for cuBLAS and cuDNN, on the stream that each was given last.
int issue_of_library(EventKind kind, const char* name, std::vector<Touched> touched = {});
Stream library_stream(EventKind kind);
void set_library_stream(EventKind kind, Stream stream);

bool captures(Stream stream);
/// Call before allocating or freeing. \return CUDA's error; 0 if none
int refuse_unsafe();
/// Call before a wait for a stream or a query of it; null stands for all streams.
int refuse_wait(Stream stream);
/// Call before a wait for an event or a query of it.
int refuse_wait_for(Happening event);
void recorded(Happening event, Stream stream);
int waits(Stream stream, Happening event);
void forget(Happening event);

/// Sets the last error (stub_runtime.cpp) and returns `code`.
int failed_with(int code);

}  // namespace stub
