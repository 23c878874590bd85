#include "lib/training/data/head_targets.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lib/base/types/error.hpp"

namespace fsdp {

HeadKind head_of(const ModelConfig& config) {
  if (!config.has_scores()) return HeadKind::next_token;
  return config.labels.size() == 1 ? HeadKind::reward : HeadKind::classify;
}

std::string list_of_labels(const std::vector<std::string>& labels) {
  constexpr std::ptrdiff_t kShown = 8;
  const auto shown = std::min(kShown, std::ssize(labels));
  return fmt::format("{}{}", fmt::join(labels.begin(), labels.begin() + shown, ", "),
                     shown < std::ssize(labels) ? ", ..." : "");
}

void check_targets(const TokenFile& tokens, const ModelConfig& config, const std::string& what) {
  const auto notes = tokens.notes();
  const auto head = head_of(config);
  const auto wanted = head == HeadKind::next_token ? std::string() : std::string(name_of(kHeadNames, head));
  if (notes.head != wanted) {
    throw RequestError(
        notes.head.empty()
            ? fmt::format("{} has no targets of the head {}: give the texts, or encode them for it", what, wanted)
            : fmt::format("{} was encoded for the head {}", what, notes.head));
  }
  if (head == HeadKind::classify && notes.labels != config.labels)
    throw RequestError(fmt::format("{} has the labels {}, and the model {}", what, list_of_labels(notes.labels),
                                   list_of_labels(config.labels)));
}

}  // namespace fsdp
