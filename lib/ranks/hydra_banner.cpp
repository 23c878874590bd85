#include "lib/ranks/hydra_banner.hpp"

#include <algorithm>
#include <span>

namespace fsdp {
namespace {

/// The start of a line; with `open`, arbitrary text follows up to its end.
struct BannerLine {
  std::string_view begin;
  bool open = false;
};
constexpr std::size_t kLongestWords = 512;  ///< longest text of an open line; a host name has up to 255 characters

// The messages of MPICH 3.2 to 5.0 (control_cb() in hydra's pmiserv_cb.c, main() in its mpiexec.c).
constexpr std::string_view kRule =
    "===================================================================================\n";
constexpr BannerLine kBox[] = {{kRule},
                               {"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"},
                               {"=   PID ", true},
                               {"=   EXIT CODE: ", true},
                               {"=   CLEANING UP REMAINING PROCESSES\n"},
                               {"=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n"},
                               {kRule}};
constexpr BannerLine kLastWords[] = {{"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ", true},
                                     {"This typically refers to a problem with your application.\n"},
                                     {"Please see the FAQ page for debugging suggestions\n"}};

enum class Fit { no, so_far, whole };

/// Tells whether `text` begins with these lines, or may do so once more bytes arrive.
/// \param[out] size  length of the whole message
Fit fit(std::string_view text, std::span<const BannerLine> lines, std::size_t& size) {
  size = 0;
  for (const BannerLine& line : lines) {
    const auto rest = text.substr(size);
    const auto common = std::min(rest.size(), line.begin.size());
    if (rest.substr(0, common) != line.begin.substr(0, common)) return Fit::no;
    if (common < line.begin.size()) return Fit::so_far;
    size += common;
    if (!line.open) continue;
    const auto words = text.substr(size, kLongestWords).find('\n');
    if (words == std::string_view::npos) return text.size() - size < kLongestWords ? Fit::so_far : Fit::no;
    size += words + 1;
  }
  return Fit::whole;
}

}  // namespace

std::string HydraBanner::pass(std::string_view bytes) {
  text_ += bytes;
  return take(false);
}

/// First position from `from` on where a message may begin: a box at the start of a line, the last lines anywhere.
std::size_t HydraBanner::next_begin(std::size_t from) const {
  const auto line_end = text_.find("\n=", from - 1);
  const auto box = line_end == std::string::npos ? text_.size() : line_end + 1;
  return dropped_ ? std::min(box, text_.find(kLastWords[0].begin[0], from)) : box;
}

std::string HydraBanner::take(bool at_end) {
  std::string passed;
  std::size_t at = 1;
  while (at < text_.size()) {
    const auto begin = next_begin(at);
    passed.append(text_, at, begin - at);
    at = begin;
    if (at == text_.size()) break;
    const auto rest = std::string_view(text_).substr(at);
    std::size_t size = 0;
    const auto box = fit(rest, kBox, size);
    if (box == Fit::whole) {
      dropped_ = true;
      at += size;
      continue;
    }
    const auto last = dropped_ ? fit(rest, kLastWords, size) : Fit::no;
    const bool is_last = last == Fit::whole && size == rest.size();
    if (!at_end && (box == Fit::so_far || last == Fit::so_far || is_last)) break;
    if (at_end && is_last) {
      at = text_.size();
    } else {
      passed += text_[at++];
    }
  }
  text_.erase(0, at - 1);
  return passed;
}

}  // namespace fsdp
