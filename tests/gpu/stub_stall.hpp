#pragma once
// Emulates a dead peer: with FSDP_STUB_STALL=NUMBER:RANK:stop|kill, that rank stops or kills itself when it queues its
// NUMBERth group of collectives. The work that other ranks have queued by then and queue later never completes, so a
// wait for the device without a time limit never returns, as on a GPU.
namespace stub {

void collective_queued();
/// True once queued work can no longer complete.
bool stalled();
/// Returns when all queued work is done: at once, or never.
void wait_for_device();

}  // namespace stub
