#include "lib/files/write/copy.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "lib/base/elapsed.hpp"
#include "lib/base/error.hpp"
#include "lib/base/usable_resources.hpp"
#include "lib/files/write/output_place.hpp"
#include "lib/files/write/pieces.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

int default_jobs() {
  constexpr int most = 4;
  return std::min(usable_cores(), most);
}

/// Appends the bytes of a value to text that one rank sends to another rank of the same build.
template <typename T>
void append_raw(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
T take_raw(std::string_view& text) {
  T value;
  std::memcpy(&value, text.data(), sizeof(value));
  text.remove_prefix(sizeof(value));
  return value;
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// The part of one rank in a copy.
class Copy {
 public:
  Copy(const Source& source, Target& target, const std::filesystem::path& output, const CopyOptions& options,
       ProcessGroup& group)
      : source_(source), target_(target), output_(output), options_(options), group_(group) {}

  CopyReport run() {
    const auto start = std::chrono::steady_clock::now();
    plan();
    open_output();
    cut();
    copy_pieces();
    gather_sums();
    finish();
    CopyReport report;
    report.num_files = layout_.files.size();
    for (const auto& file : layout_.files) report.bytes_written += file.size_bytes;
    report.seconds = seconds_since(start);
    return report;
  }

 private:
  bool is_root() const { return group_.rank() == 0; }

  /// Collective like run_agreed(). Messages name the output instead of the temporary directory.
  void agreed(const std::function<void()>& action) {
    run_agreed(group_, [&] {
      try {
        action();
      } catch (const MissingInput&) {
        throw;
      } catch (const IoError& error) {
        throw IoError(with_output_names(error.what()));
      }
    });
  }

  std::string with_output_names(std::string text) const {
    const auto hidden = place_ ? hidden_ : temporary_.string();
    if (hidden.empty()) return text;
    const auto shown = target_.is_directory() ? output_.string() : parent_of(output_).string();
    for (auto at = text.find(hidden); at != text.npos; at = text.find(hidden, at + shown.size())) {
      text.replace(at, hidden.size(), shown);
    }
    return text;
  }

  void plan() {
    agreed([&] { layout_ = target_.plan(source_); });
  }

  /// Must come after open_output(), which checks that the output fits on the disk: a damaged source may claim any size,
  /// and the list of pieces grows with it.
  void cut() {
    agreed([&] { list_ = detail::cut_pieces(source_, layout_, options_.piece_bytes); });
    // A rank with another input would write wrong bytes into the output.
    std::vector<double> seen{static_cast<double>(list_.bytes), static_cast<double>(list_.pieces.size()),
                             -static_cast<double>(list_.bytes), -static_cast<double>(list_.pieces.size())};
    group_.all_reduce(seen, Reduce::max);
    if (seen[0] != -seen[2] || seen[1] != -seen[3]) {
      throw RuntimeFailure("the ranks do not see the same input: is it on a file system that all nodes share?");
    }
  }

  void open_output() {
    agreed([&] {
      if (!is_root()) return;
      place_.emplace(source_, layout_, output_, target_.is_directory(), options_.overwrite);
      hidden_ = place_->temporary().string();
      place_->create_files();
      place_->write(layout_.literals);
    });
    layout_.literals.clear();
    layout_.literals.shrink_to_fit();
    temporary_ = group_.broadcast_text(is_root() ? place_->temporary().string() : std::string(), 0);
  }

  /// Several ranks copy in rounds, so that a rank that fails or is stopped ends the others soon.
  void copy_pieces() {
    constexpr std::uint64_t round_bytes = 1ull << 30, most_rounds = 1000;
    const auto num_ranks = static_cast<std::size_t>(group_.size()), rank = static_cast<std::size_t>(group_.rank());
    const auto begins = detail::deal_jobs(list_.jobs, num_ranks);
    const auto first = begins[rank], count = begins[rank + 1] - first;
    const std::uint64_t rounds =
        num_ranks == 1 ? 1 : std::clamp<std::uint64_t>(list_.bytes / num_ranks / round_bytes, 1, most_rounds);
    const int jobs = options_.jobs > 0 ? options_.jobs : default_jobs();
    std::uint64_t others = 0;
    detail::PieceCopier::Hooks hooks{nullptr, options_.stop};
    if (is_root() && options_.progress) {
      hooks.progress = [&](std::uint64_t mine) { options_.progress({mine + others, list_.bytes}); };
    }
    copier_.emplace(source_, layout_, list_, temporary_, target_.wants_checksums(), hooks);
    for (std::uint64_t round = 0; round < rounds; ++round) {
      agreed([&] { copier_->copy(first + count * round / rounds, first + count * (round + 1) / rounds, jobs); });
      const auto mine = static_cast<double>(copier_->bytes_done());
      others = static_cast<std::uint64_t>(group_.all_reduce(mine, Reduce::sum) - mine);
    }
    if (hooks.progress) hooks.progress(copier_->bytes_done());
  }

  /// Gathers the sums of all ranks on rank 0.
  void gather_sums() {
    if (group_.size() == 1) return;
    const auto begins = detail::deal_jobs(list_.jobs, static_cast<std::size_t>(group_.size()));
    const auto first = begins[static_cast<std::size_t>(group_.rank())],
               end = begins[static_cast<std::size_t>(group_.rank()) + 1];
    std::string mine;
    if (!is_root()) {
      const auto& sums = copier_->piece_sums();
      for (std::size_t job = first; job < end && !sums.empty(); ++job) {
        for (std::size_t i = 0; i < list_.jobs[job].count; ++i) append_raw(mine, sums[list_.jobs[job].first + i]);
      }
      for (const auto& sum : copier_->read_sums()) append_raw(mine, sum);
    }
    const auto parts = group_.gather(mine, 0);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      std::string_view text = parts[rank];
      auto& sums = copier_->piece_sums();
      for (std::size_t job = begins[rank]; job < begins[rank + 1] && !sums.empty(); ++job) {
        for (std::size_t i = 0; i < list_.jobs[job].count; ++i) {
          sums[list_.jobs[job].first + i] = take_raw<std::uint32_t>(text);
        }
      }
      while (!text.empty()) copier_->read_sums().push_back(take_raw<ReadSum>(text));
    }
  }

  void finish() {
    agreed([&] {
      if (!is_root()) return;
      source_.verify_sums(std::move(copier_->read_sums()));
      std::vector<std::uint32_t> sums;
      if (target_.wants_checksums()) sums = detail::segment_sums(source_, layout_, list_, copier_->piece_sums());
      const auto literals = target_.finish(sums);
      place_->write(literals);
      for (const auto& literal : literals) {
        auto& size = layout_.files[literal.file].size_bytes;
        size = std::max<std::uint64_t>(size, literal.offset_bytes + literal.bytes.size());
      }
      if (options_.stop && options_.stop()) throw Stopped();
      place_->publish(options_.sync);
    });
  }

  const Source& source_;
  Target& target_;
  const std::filesystem::path& output_;
  const CopyOptions& options_;
  ProcessGroup& group_;
  Layout layout_;
  detail::PieceList list_;
  std::optional<detail::OutputPlace> place_;  // on rank 0
  std::filesystem::path temporary_;
  std::string hidden_;  // on rank 0: the path of the temporary directory, also after it was renamed
  std::optional<detail::PieceCopier> copier_;
};

}  // namespace

CopyReport copy(const Source& source, Target& target, const std::filesystem::path& output, const CopyOptions& options,
                ProcessGroup& group) {
  return Copy(source, target, output, options, group).run();
}

}  // namespace fsdp
