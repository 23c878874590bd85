#pragma once
// Streams whose work is captured into graphs, and what a driver refuses meanwhile.
//
// A captured launch keeps its arguments: whenever the graph is launched, the memory that its kernels of ours and its
// copies touch must still be allocated. Refused, as CUDA refuses it: waiting for, and asking after, what is captured;
// allocating and freeing, unless the thread has said that it knows (cudaThreadExchangeStreamCaptureMode); memory of
// the host that is not locked; events of before; streams that do not join again. And, though CUDA would do it at once:
// work on another stream by a thread that captures, which no replay would do again. FSDP_STUB_CAPTURE=N: the Nth
// launch of a capture is refused, too.
#include <vector>

#include "tests/gpu/stub_log.hpp"

namespace stub {

using Stream = const void*;
using Happening = const void*;  ///< an event of CUDA's

/// Puts it into the log, or into the graph that the stream captures. \return CUDA's error, 0: none
int issue(Event event, std::vector<Touched> touched, Stream stream);
/// The same of cuBLAS and cuDNN, on the streams that they were given last.
int issue_of_library(EventKind kind, const char* name);
void set_library_stream(EventKind kind, Stream stream);

bool captures(Stream stream);
/// What allocates or frees. \return CUDA's error, 0: none
int refuse_unsafe();
/// What waits for a stream or asks after it; null: for all.
int refuse_wait(Stream stream);
/// The same of an event.
int refuse_wait_for(Happening event);
void recorded(Happening event, Stream stream);
int waits(Stream stream, Happening event);
void forget(Happening event);

/// Is the last error from now on (stub_runtime.cpp).
int failed_with(int code);

}  // namespace stub
