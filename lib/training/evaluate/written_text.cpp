#include "lib/training/evaluate/written_text.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lib/base/text/json_text.hpp"

namespace fsdp {
namespace {

/// Length of the longest end of `text` with which `stop` begins, but not all of `stop`.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (auto length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::string WrittenText::show(std::size_t bytes) {
  auto shown = pending_.substr(0, bytes);
  pending_.erase(0, bytes);
  text_ += shown;
  return shown;
}

std::string WrittenText::take(const std::string& text) {
  if (stopped_) return {};
  pending_ += text;
  auto found = std::string::npos;
  std::size_t held = 0;
  for (const auto& stop : stops_) {
    found = std::min(found, pending_.find(stop));
    held = std::max(held, begun(pending_, stop));
  }
  if (found == std::string::npos) return show(pending_.size() - held);
  stopped_ = true;
  pending_.resize(found);
  return show(found);
}

std::string WrittenText::add(std::int32_t id) { return take(generated_.add(id)); }

std::string WrittenText::rest() {
  const auto last = take(generated_.end());
  return last + show(pending_.size());
}

nlohmann::json json_text(const std::string& text) { return parse_json(printable_json(nlohmann::json(text)), "a text"); }

}  // namespace fsdp
