#include "lib/files/transform/byte_progress.hpp"

#include <fmt/format.h>

#include <utility>

#include "lib/base/elapsed.hpp"
#include "lib/base/text_format.hpp"

namespace fsdp {

std::string progress_text(std::uint64_t bytes_done, std::uint64_t bytes_total, double seconds) {
  const auto done = static_cast<double>(bytes_done);
  const auto total = static_cast<double>(bytes_total);
  const double rate = seconds > 0 ? done / seconds : 0;
  return fmt::format("{} of {} ({:.0f} %)   {}/s   eta {}", format_bytes(done), format_bytes(total),
                     total > 0 ? 100 * done / total : 100.0, format_bytes(rate),
                     rate > 0 ? format_duration((total - done) / rate) : "?");
}

ByteProgress::ByteProgress(const Logger& log, std::string verb, double seconds)
    : status_(log), verb_(std::move(verb)), interval_seconds_(seconds) {}

double ByteProgress::seconds() const { return seconds_since(begin_); }

void ByteProgress::update(std::uint64_t bytes_done, std::uint64_t bytes_total) {
  constexpr double kLive_seconds = 0.2;
  const auto now = Clock::now();
  const auto since = std::chrono::duration<double>(now - last_).count();
  if (since < (status_.on_terminal() ? kLive_seconds : interval_seconds_)) return;
  last_ = now;
  const auto line = verb_ + " " + progress_text(bytes_done, bytes_total, seconds());
  if (status_.on_terminal()) {
    status_.show(line);
  } else {
    status_.keep(line);
  }
}

}  // namespace fsdp
