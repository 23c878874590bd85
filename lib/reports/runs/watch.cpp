#include "lib/reports/runs/watch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <thread>

#include "lib/base/files/output_file.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/reports/runs/rank_table.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
constexpr auto kEvery = std::chrono::seconds(2), kPageEvery = std::chrono::seconds(10);
constexpr int kUsualWidth = 100, kUsualRows = 24;
constexpr int kFewestRows = 4;
constexpr int kBarWidth = 24;

std::string progress_bar(double share) {
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarWidth));
  std::string bar;
  for (int i = 0; i < kBarWidth; ++i) bar += i < full ? "█" : "░";
  return bar;
}

std::string duration_text(double seconds) { return std::abs(seconds) < 9e18 ? format_duration(seconds) : "-"; }

std::string size_text(double bytes) { return std::isfinite(bytes) ? format_bytes(bytes) : "-"; }

std::string state_line(const RunSummary& run) {
  const auto& f = run.files;
  const auto last = f.steps.empty() ? 0 : f.steps.back().step;
  auto text = fmt::format("{}   {}", printable(run.label),
                          f.steps.empty() && f.state == RunStatus::running ? "starting" : to_string(f.state));
  if (f.total_steps <= 0) return text + fmt::format("   step {}", last);
  const double share = static_cast<double>(last) / static_cast<double>(f.total_steps);
  text += fmt::format("   {}   step {}/{}   {:.0f} %", progress_bar(share), last, f.total_steps, 100 * share);
  if (f.state == RunStatus::running && run.step_seconds.count > 0) {
    const double left = static_cast<double>(f.total_steps) - static_cast<double>(last);
    text += "   eta " + duration_text(run.step_seconds.median * left);
  }
  return text;
}

/// Model size, ranks, sharding and precision of a run.
std::string settings_line(const RunFiles& f) {
  if (f.settings.empty()) return "";
  std::string text = "run       ";
  if (std::isfinite(f.parameters))
    text += fmt::format("{:.1f} {} parameters   ", f.parameters / (f.parameters < 1e6 ? 1e3 : 1e6),
                        f.parameters < 1e6 ? "k" : "M");
  text += printable(setting_of(f, "ranks")) + " ranks";
  for (const char* name : {"nodes", "gpu", "sharding", "precision"}) {
    const auto value = setting_of(f, name);
    if (value != "-") text += fmt::format("   {}{}", std::strcmp(name, "nodes") == 0 ? "nodes " : "", printable(value));
  }
  if (setting_of(f, "activation-checkpointing") != "none")
    text += "   recomputes " + printable(setting_of(f, "activation-checkpointing"));
  return text;
}

/// \param is_loss  the lowest value is the best; otherwise the highest
std::string curve_line(const std::string& name, const std::vector<double>& values, bool is_loss, int width) {
  const double last = values.back();
  const auto best = std::min_element(values.begin(), values.end(), [is_loss](double a, double b) {
    return (is_loss ? a < b : a > b) || (std::isnan(b) && !std::isnan(a));
  });
  const auto head = fmt::format("{:<9} {:.4f}   ", name, last);
  const auto tail = fmt::format("   from {:.4f}, {} {:.4f}", values.front(), is_loss ? "lowest" : "highest", *best);
  const int room = width - static_cast<int>(head.size() + tail.size());
  return head + detail::sparkline(values, std::clamp(room, 8, 60)) + tail;
}

std::string speed_line(const RunSummary& run) {
  const auto& s = run.tokens_per_second;
  const auto& seconds = run.step_seconds.median;
  return fmt::format("speed     {} ± {} tok/s   {} s/step   last step {} tok/s{}", count_text(s.median),
                     count_text(s.half_width()), std::isfinite(seconds) ? fmt::format("{:.3f}", seconds) : "-",
                     count_text(run.files.steps.back().tokens_per_second),
                     std::isfinite(run.mfu) ? fmt::format("   {:.0f} % of peak", 100 * run.mfu) : "");
}

std::string memory_line(const RunFiles& f) {
  auto text = fmt::format("memory    peak {}", size_text(f.peak_bytes));
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

/// The last comparison of the ranks, where they wait for one of them.
std::string ranks_line(const RunFiles& f) {
  if (f.ranks.empty() || f.ranks.back().cause.empty()) return "";
  const auto& last = f.ranks.back();
  const auto waits = std::isfinite(last.wait_share)
                         ? fmt::format("makes the others wait, {:.0f} % of the time", 100 * last.wait_share)
                         : std::string("is slower than the others");
  return fmt::format("slow      rank {} {}: {}", last.slowest, waits, printable(last.cause));
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// When the next checkpoint is saved; "" where the job does not tell.
std::string next_save_text(const RunSummary& run) {
  const auto& f = run.files;
  if (f.save_every < 0 || f.steps.empty()) return "";
  const auto last = f.steps.back().step;
  const auto left = f.total_steps > last ? f.total_steps - last : 0;
  const double step_seconds = run.step_seconds.median;
  const double end_seconds = step_seconds * static_cast<double>(left);
  std::vector<std::string> when;
  if (f.save_every > 0 && f.save_every - last % f.save_every < left) {
    const auto steps = f.save_every - last % f.save_every;
    when.push_back(fmt::format("in {} ({})", format_count_of(steps, "step"),
                               duration_text(step_seconds * static_cast<double>(steps))));
  }
  const double wait_seconds = std::max(0.0, f.last_save_time + f.save_interval_seconds - now_seconds());
  if (f.save_interval_seconds > 0 && std::isfinite(wait_seconds) && !(wait_seconds > end_seconds))
    when.push_back("in " + duration_text(wait_seconds));
  if (when.empty() && !f.saves_at_the_end) return "no further save";
  if (when.empty()) when.push_back(fmt::format("at the end ({})", duration_text(end_seconds)));
  return fmt::format("next save {}", fmt::join(when, " or "));
}

/// The time since the last step, and the next save.
std::string step_line(const RunSummary& run) {
  const auto save = next_save_text(run);
  const auto& age = run.files.step_age_seconds;
  if (!std::isfinite(age)) return save.empty() ? "" : "next      " + save;
  return fmt::format("last step {} ago{}{}", duration_text(std::max(0.0, age)), save.empty() ? "" : "   ", save);
}

/// Truncates to `width` UTF-8 characters.
std::string cut(const std::string& line, int width) {
  int characters = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xC0U) == 0x80U) continue;
    if (characters++ == width) return line.substr(0, i);
  }
  return line;
}

struct Screen {
  int width = kUsualWidth, rows = kUsualRows;
};

Screen screen_now() {
  winsize size{};
  Screen screen;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return screen;
  if (size.ws_col > 20) screen.width = size.ws_col;
  if (size.ws_row > 0) screen.rows = size.ws_row;
  return screen;
}

bool goes_on(const RunSummary& run) {
  return run.files.state == RunStatus::running || run.files.state == RunStatus::silent;
}

/// Reads the runs in `paths` again; keeps readers between calls so that only new records are parsed.
std::vector<RunFiles> read_again(const std::vector<std::string>& paths, std::map<fs::path, RunReader>& readers) {
  std::vector<RunFiles> runs;
  for (const auto& directory : find_runs(paths))
    runs.push_back(readers.try_emplace(directory, directory).first->second.read());
  return runs;
}

std::string all_views(const std::vector<RunSummary>& runs, int width) {
  std::string text;
  for (const auto& run : runs) text += (text.empty() ? "" : "\n") + run_view(run, width);
  return text;
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
    const double height = high > low ? (mean / 2 - low / 2) / (high / 2 - low / 2) : 0;  // the range may be infinite
    line += element(kBlocks, std::lround(height * 7));
  }
  return line;
}

std::string run_view(const RunSummary& run, int width, int rank_rows) {
  const auto& f = run.files;
  std::vector<std::string> lines{state_line(run), settings_line(f)};
  if (!f.steps.empty()) {
    std::vector<double> losses;
    for (const auto& step : f.steps) losses.push_back(step.loss);
    lines.push_back(curve_line("loss", losses, /*is_loss=*/true, width));
    lines.push_back(speed_line(run));
    lines.push_back(memory_line(f));
  }
  auto where = f.steps.empty() ? 2 : 3;
  for (const auto& validation : run.validation) {
    std::vector<double> values;
    for (const auto& eval : f.evals) {
      if (eval.set == validation.set && eval.is_loss == validation.is_loss) values.push_back(eval.value);
    }
    const auto name = validation.set.empty() ? "eval" : "eval " + printable(validation.set);
    lines.insert(lines.begin() + where++, curve_line(name, values, !validation.higher_is_better, width));
  }
  if (!f.saves.empty()) lines.push_back(saves_line(f));
  if (!f.ended_early.empty()) lines.push_back("early     " + printable(f.ended_early));
  if (goes_on(run)) lines.push_back(step_line(run));
  if (goes_on(run)) lines.push_back(ranks_line(f));
  if (f.state != RunStatus::done && f.state != RunStatus::stopped) {
    for (const auto& line : rank_table(f.nodes, width, rank_rows)) lines.push_back(line);
  }
  if (goes_on(run) && std::isfinite(f.age_seconds))
    lines.push_back(
        fmt::format("heard     {} ago   {}", duration_text(std::max(0.0, f.age_seconds)), printable(f.owner)));
  std::string text;
  for (const auto& line : lines) {
    if (!line.empty()) text += cut(line, width) + "\n";
  }
  return text;
}

std::string detail::screen_of(const std::vector<RunSummary>& runs, int width, int rows) {
  std::vector<const RunSummary*> order;
  for (const auto& run : runs) order.push_back(&run);
  std::stable_partition(order.begin(), order.end(), [](const RunSummary* run) { return goes_on(*run); });
  const auto room = static_cast<std::size_t>(std::max(rows, kFewestRows) - 1);
  const std::size_t shown = order.size() > room ? room - 1 : order.size();
  std::size_t left = room - shown - (shown < order.size() ? 1 : 0);  // lines left after giving each run one line
  const auto lines_of = [](const std::string& view) {
    return static_cast<std::size_t>(std::count(view.begin(), view.end(), '\n'));
  };
  std::size_t in_full = 0;
  for (; in_full < shown; ++in_full) {
    const auto more = lines_of(run_view(*order[in_full], width, 0)) - (in_full == 0 ? 1 : 0);
    if (more > left) break;
    left -= more;
  }
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    if (i >= in_full) {
      text += cut(state_line(*order[i]), width) + "\n";
      continue;
    }
    const auto view = run_view(*order[i], width, static_cast<int>(left));  // what is still left is for ranks
    left -= lines_of(view) - lines_of(run_view(*order[i], width, 0));
    text += (text.empty() ? "" : "\n") + view;
  }
  if (shown < order.size()) text += cut(fmt::format("and {} more", order.size() - shown), width) + "\n";
  return text;
}

void watch_runs(const std::vector<std::string>& paths, const std::string& html_file) {
  using Clock = std::chrono::steady_clock;
  auto next_page = Clock::now();
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  std::map<fs::path, RunReader> readers;
  for (std::ptrdiff_t shown_lines = 0;;) {
    const auto begin = Clock::now();
    const auto comparison = compare_runs(read_again(paths, readers), false);
    const auto& runs = comparison.runs;
    const auto screen = terminal ? screen_now() : Screen{};
    const bool active = std::any_of(runs.begin(), runs.end(), goes_on);
    const bool again = active && (terminal || !html_file.empty());
    if (!html_file.empty() && (!again || begin >= next_page)) {
      write_output(html_file, run_comparison_to_html(comparison, again ? static_cast<int>(kPageEvery.count()) : 0));
      next_page = begin + kPageEvery;
    }
    if (terminal || !again) {
      const auto text = again ? detail::screen_of(runs, screen.width, screen.rows) : all_views(runs, screen.width);
      // move the cursor up and clear the screen below
      if (shown_lines > 0) std::cout << fmt::format("\x1b[{}A\x1b[J", shown_lines);
      std::cout << text << std::flush;
      if (!std::cout) throw IoError("stdout: cannot be written");
      shown_lines = std::count(text.begin(), text.end(), '\n');
    }
    if (!again) return;
    // Wait at least as long as reading took, to use at most half of the time.
    std::this_thread::sleep_for(std::max<Clock::duration>(kEvery, Clock::now() - begin));
  }
}

}  // namespace fsdp
