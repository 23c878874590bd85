#pragma once
// Finds accesses of one piece of memory by two streams, one of them a write, that no event orders.
//
// Each stream has a vector clock; events carry clocks from a record to a wait, and the host has one, too. The device is
// as slow as it can be: a query of an event fails until the host has waited for the event, or has asked 64 times, which
// is a wait. A launch of a graph is one access of all that its nodes touch. What the allocator hands out counts as
// written by the stream that it is allocated for.
//
// Not seen: reads and writes by the host, and memory of kernels other than this project's, ATen's elementwise ones,
// products, collectives and copies.
#include <span>
#include <string>

#include "tests/gpu/stub_capture.hpp"
#include "tests/gpu/stub_log.hpp"

namespace stub::races {

/// True from the program's call of fsdp_stub_watch_races() on; the other functions then do something.
bool watched();
void ran(const std::string& name, std::span<const Touched> touched, Stream stream);
void recorded(Happening event, Stream stream);
void waits(Stream stream, Happening event);
void forget(Happening event);

void host_waited_for(Happening event);
void host_waited_on(Stream stream);
void host_waited_for_all();
/// True if the host knows that the event is reached.
bool reached(Happening event);
/// Forgets accesses of memory that is given back.
void given_back(const void* data, std::size_t bytes);

}  // namespace stub::races
