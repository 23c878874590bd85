#include "lib/hub/transfer_progress.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/text_format.hpp"

namespace fsdp {
namespace {
constexpr auto kWindow = std::chrono::seconds(15);
}

void TransferProgress::sample(Clock::time_point now, std::uint64_t received_bytes) {
  samples_.push_back({now, received_bytes});
  while (samples_.size() > 2 && now - samples_.front().time > kWindow) samples_.pop_front();
}

double TransferProgress::rate() const {
  if (samples_.size() < 2) return 0;
  const auto seconds = std::chrono::duration<double>(samples_.back().time - samples_.front().time).count();
  return seconds > 0 ? static_cast<double>(samples_.back().bytes - samples_.front().bytes) / seconds : 0;
}

std::string TransferProgress::line(std::uint64_t present_bytes) const {
  const auto total = static_cast<double>(total_bytes_);
  const auto present = static_cast<double>(std::min(present_bytes, total_bytes_));
  auto text = fmt::format("{} of {}, {:.0f} %", format_bytes(present), format_bytes(total),
                          total > 0 ? std::min(99.0, 100 * present / total) : 100.0);
  const auto speed = rate();
  text += fmt::format(", {}/s", format_bytes(speed));
  if (speed > 0) text += fmt::format(", {} left", format_duration((total - present) / speed));
  return text;
}

}  // namespace fsdp
