#include "lib/runs/watch.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <thread>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"

namespace fsdp {
namespace {

constexpr auto kEvery = std::chrono::seconds(2);
constexpr int kUsualWidth = 100;
constexpr int kBarWidth = 24;

std::string progress_bar(double share) {
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarWidth));
  std::string bar;
  for (int i = 0; i < kBarWidth; ++i) bar += i < full ? "█" : "░";
  return bar;
}

std::string state_line(const RunSummary& run) {
  const auto& f = run.files;
  const auto last = f.steps.empty() ? 0 : f.steps.back().step;
  auto text = fmt::format("{}   {}", printable(run.label),
                          f.steps.empty() && f.state == RunState::running ? "starting" : to_string(f.state));
  if (f.total_steps <= 0) return text + fmt::format("   step {}", last);
  const double share = static_cast<double>(last) / static_cast<double>(f.total_steps);
  text += fmt::format("   {}   step {}/{}   {:.0f} %", progress_bar(share), last, f.total_steps, 100 * share);
  if (f.state == RunState::running && run.step_seconds.count > 0) {
    text += "   eta " + format_duration(run.step_seconds.median * static_cast<double>(f.total_steps - last));
  }
  return text;
}

/// What it trains, and on what.
std::string settings_line(const RunFiles& f) {
  if (f.settings.empty()) return "";
  std::string text = "run       ";
  if (std::isfinite(f.parameters))
    text += fmt::format("{:.1f} {} parameters   ", f.parameters / (f.parameters < 1e6 ? 1e3 : 1e6),
                        f.parameters < 1e6 ? "k" : "M");
  text += setting_of(f, "ranks") + " ranks";
  for (const char* name : {"nodes", "gpu", "sharding", "precision"}) {
    const auto value = setting_of(f, name);
    if (value != "-") text += fmt::format("   {}{}", std::strcmp(name, "nodes") == 0 ? "nodes " : "", printable(value));
  }
  if (setting_of(f, "activation-checkpointing") != "none")
    text += "   recomputes " + setting_of(f, "activation-checkpointing");
  return text;
}

std::string loss_line(const char* name, const std::vector<double>& losses, int width) {
  const double last = losses.back();
  const auto best = std::min_element(losses.begin(), losses.end(),
                                     [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); });
  const auto head = fmt::format("{:<10}{:.4f}   ", name, last);
  const auto tail = fmt::format("   from {:.4f}, lowest {:.4f}", losses.front(), *best);
  const int room = width - static_cast<int>(head.size() + tail.size());
  return head + detail::sparkline(losses, std::clamp(room, 8, 60)) + tail;
}

std::string speed_line(const RunSummary& run) {
  const auto& s = run.tokens_per_second;
  return fmt::format("speed     {} ± {} tok/s   {:.3f} s/step   last step {} tok/s{}",
                     format_count(std::llround(s.median)), format_count(std::llround(s.half_width())),
                     run.step_seconds.median, format_count(std::llround(run.files.steps.back().tokens_per_second)),
                     std::isfinite(run.mfu) ? fmt::format("   {:.0f} % of peak", 100 * run.mfu) : "");
}

std::string memory_line(const RunFiles& f) {
  auto text = fmt::format("memory    peak {}", format_bytes(f.peak_bytes));
  if (f.card_bytes > 0) text += fmt::format(", {:.1f} % of the card", 100 * f.peak_bytes / f.card_bytes);
  if (std::isfinite(f.predicted_bytes)) text += "   predicted " + format_bytes(f.predicted_bytes);
  if (std::isfinite(f.resident_bytes)) text += "   resident " + format_bytes(f.resident_bytes);
  if (std::isfinite(f.alloc_retries)) text += fmt::format("   {:.0f} alloc retries", f.alloc_retries);
  return text;
}

std::string saves_line(const RunFiles& f) {
  const auto& last = f.saves.back();
  return fmt::format("saved     step {}   {} in {:.1f} s (training waited {:.2f} s)", last.step,
                     format_bytes(last.bytes), last.seconds, last.waited_seconds);
}

/// Cut to `width` characters of UTF-8.
std::string cut(const std::string& line, int width) {
  int characters = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xC0U) == 0x80U) continue;
    if (characters++ == width) return line.substr(0, i);
  }
  return line;
}

int terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : kUsualWidth;
}

}  // namespace

std::string detail::sparkline(const std::vector<double>& values, int width) {
  constexpr std::array<const char*, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto count = std::min(values.size(), static_cast<std::size_t>(std::max(width, 1)));
  std::vector<double> means;
  for (std::size_t c = 0; c < count; ++c) {
    double sum = 0;
    int finite = 0;
    for (std::size_t i = c * values.size() / count; i < (c + 1) * values.size() / count; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++finite;
    }
    means.push_back(finite > 0 ? sum / finite : kNoNumber);
  }
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double mean : means) {
    if (!std::isfinite(mean)) continue;
    low = std::min(low, mean);
    high = std::max(high, mean);
  }
  std::string line;
  for (const double mean : means) {
    if (!std::isfinite(mean)) {
      line += ' ';
      continue;
    }
    const double height = high > low ? (mean - low) / (high - low) : 0;
    line += kBlocks[static_cast<std::size_t>(std::lround(height * 7))];
  }
  return line;
}

std::string run_view(const RunSummary& run, int width) {
  const auto& f = run.files;
  std::vector<std::string> lines{state_line(run), settings_line(f)};
  if (!f.steps.empty()) {
    std::vector<double> losses;
    for (const auto& step : f.steps) losses.push_back(step.loss);
    lines.push_back(loss_line("loss", losses, width));
    lines.push_back(speed_line(run));
    lines.push_back(memory_line(f));
  }
  if (!f.evals.empty()) {
    std::vector<double> losses;
    for (const auto& eval : f.evals) losses.push_back(eval.loss);
    lines.insert(lines.begin() + (f.steps.empty() ? 2 : 3), loss_line("eval", losses, width));
  }
  if (!f.saves.empty()) lines.push_back(saves_line(f));
  const bool goes_on = f.state == RunState::running || f.state == RunState::silent;
  if (goes_on && std::isfinite(f.age_seconds))
    lines.push_back(
        fmt::format("heard     {} ago   {}", format_duration(std::max(0.0, f.age_seconds)), printable(f.owner)));
  std::string text;
  for (const auto& line : lines) {
    if (!line.empty()) text += cut(line, width) + "\n";
  }
  return text;
}

void watch_runs(const std::vector<std::string>& paths) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  for (std::ptrdiff_t shown_lines = 0;;) {
    const auto comparison = compare_runs(find_runs(paths), false);
    std::string text;
    bool goes_on = false;
    for (const auto& run : comparison.runs) {
      text += (text.empty() ? "" : "\n") + run_view(run, terminal ? terminal_width() : kUsualWidth);
      goes_on = goes_on || run.files.state == RunState::running || run.files.state == RunState::silent;
    }
    if (shown_lines > 0) std::cout << fmt::format("\x1b[{}A\x1b[J", shown_lines);  // up, and clear what follows
    std::cout << text << std::flush;
    if (!std::cout) throw IoError("stdout: cannot be written");
    if (!terminal || !goes_on) return;
    shown_lines = std::count(text.begin(), text.end(), '\n');
    std::this_thread::sleep_for(kEvery);
  }
}

}  // namespace fsdp
