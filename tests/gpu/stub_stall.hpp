#pragma once
// Emulates a dead peer: with FSDP_STUB_STALL=NUMBER:RANK:stop|kill, that rank stops or kills itself when it queues its
// NUMBERth group of collectives. The work that other ranks have queued by then and queue later does not complete before
// they abort their communicators, so a wait for the device without a time limit never returns, as on a GPU. A stream
// takes 1000 more entries; further launches, records and waits block in the driver, and while one thread is blocked
// there, another's query of an event blocks, too: the worst case, since a driver may hold its lock.
namespace stub {

void communicator_made();
void communicator_ended();
void collective_queued();
/// True once queued work can no longer complete.
bool stalled();
/// Returns when all queued work is done: at once, or after all communicators have been aborted.
void wait_for_device();
/// Call before each entry of a stream's queue. Returns when the queue has room.
void queue_entry(const void* stream);
/// Call before a query. Returns when no thread is blocked.
void pass_blocked_threads();

}  // namespace stub
