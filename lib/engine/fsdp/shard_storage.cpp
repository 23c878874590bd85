#include "lib/engine/fsdp/shard_storage.hpp"

#include "lib/engine/fsdp/engine.hpp"

namespace fsdp::detail {

std::unique_ptr<ShardStorage> make_shard_storage(const EngineInput& input, const EnginePolicy& policy) {
  return input.store == nullptr ? make_memory_shards(*input.ops, policy)
                                : make_stored_shards(*input.store, *input.ops, policy);
}

}  // namespace fsdp::detail
