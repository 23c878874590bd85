#pragma once
// A peer that is gone: where FSDP_STUB_STALL=NUMBER:RANK:stop|kill, that rank stops or kills itself when it queues its
// NUMBERth group of collectives, and what the others have queued by then, and whatever they queue behind it, is never
// done: who waits for the device without a limit waits for ever, as on a GPU.
namespace stub {

void collective_queued();
/// Nothing that was asked for will be done.
bool stalled();
/// Returns when all that was asked for is done: at once, or never.
void wait_for_device();

}  // namespace stub
