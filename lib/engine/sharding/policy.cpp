#include "lib/engine/sharding/policy.hpp"

#include <charconv>
#include <stdexcept>

#include "lib/base/types/error.hpp"

namespace fsdp {

bool gathers_again_in_backward(Sharding sharding) {
  switch (sharding) {
    case Sharding::full_shard:
    case Sharding::hybrid_full_shard:
      return true;
    case Sharding::grad_shard:
    case Sharding::optimizer_shard:
    case Sharding::no_shard:
    case Sharding::hybrid_grad_shard:
      return false;
  }
  throw std::logic_error("not a Sharding");
}

bool is_hybrid(Sharding sharding) {
  return sharding == Sharding::hybrid_full_shard || sharding == Sharding::hybrid_grad_shard;
}

bool stays_gathered(Sharding sharding) { return sharding == Sharding::optimizer_shard; }

int parse_activation_checkpointing(std::string_view text, std::string_view option) {
  if (text.empty() || text == "none" || text == "false") return 0;
  if (text == "all" || text == "true") return 1;
  if (text.starts_with("every:")) {
    const auto number = text.substr(6);
    int every = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), every);
    if (error == std::errc() && end == number.data() + number.size() && every >= 1 && every <= 1'000'000) return every;
  }
  throw RequestError(std::string(option) + " is '" + std::string(text) + "', choose from " + kCheckpointingChoices);
}

std::string activation_checkpointing_name(int every) {
  if (every <= 1) return every == 0 ? "none" : "all";
  return "every:" + std::to_string(every);
}

}  // namespace fsdp
