#include "lib/training/evaluate/prompt_results.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <iostream>
#include <memory>
#include <set>
#include <system_error>

#include "lib/base/files/file.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/evaluate/prompt_works.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {
namespace {

/// The beginning of every line: a file that ends otherwise than in a part of such a line is not cut.
constexpr std::string_view kLineBegin = "{\"index\":";

/// Names all that decides a result.
std::string key_of(const FilePrompt& prompt, std::size_t index, const PromptResultsOptions& options) {
  const auto& s = options.sampling;
  nlohmann::json all{{"prompt", prompt.prompt.ids},
                     {"ends", prompt.prompt.ends},
                     {"id", prompt.id},
                     {"made_with", options.made_with},
                     {"num_tokens", s.num_tokens},
                     {"temperature", s.temperature},
                     {"stops", s.stops}};
  if (s.temperature > 0) all.update({{"top_k", s.top_k}, {"top_p", s.top_p}, {"seed", s.seed}, {"index", index}});
  return fmt::format("{:016x}", fnv1a(printable_json(all)));
}

/// The file of the results, on rank 0.
class ResultFile {
 public:
  /// Opens the file and reads what it has. \param keys  of all prompts
  ResultFile(const PromptResultsOptions& options, const std::vector<std::string>& keys) : path_(options.output) {
    if (path_.empty()) return;
    std::error_code ignored;
    const bool is_regular = std::filesystem::is_regular_file(path_, ignored);
    if (is_regular && !options.overwrite) read(keys);
    file_ = File::open_append(path_);
    if (is_regular) file_.truncate(options.overwrite ? 0 : whole_bytes_);
  }
  /// Numbers of the prompts that have a result.
  const std::set<std::size_t>& done() const { return done_; }

  void write(const std::string& lines) {
    if (path_.empty()) {
      std::cout << lines << std::flush;
    } else {
      file_.write(lines);
    }
  }

 private:
  void read(const std::vector<std::string>& keys) {
    const auto text = read_text_file(path_, std::uint64_t{1} << 40);
    std::size_t begin = 0;
    for (std::int64_t line = 1; begin < text.size(); ++line) {
      const auto end = text.find('\n', begin);
      const auto of_line = std::string_view(text).substr(begin, end == text.npos ? text.npos : end - begin);
      if (end == text.npos) {
        // A run that was killed while it wrote leaves a part of a line.
        if (of_line.starts_with(kLineBegin) || kLineBegin.starts_with(of_line)) break;
        fail(line, "is no result of prompts");
      }
      take(of_line, line, keys);
      begin = end + 1;
    }
    whole_bytes_ = begin;
  }

  void take(std::string_view text, std::int64_t line, const std::vector<std::string>& keys) {
    const auto result = parse_json_or_discard(text, path_.string());
    if (!result.is_object() || !result.value("index", nlohmann::json()).is_number_unsigned() ||
        !result.value("key", nlohmann::json()).is_string())
      fail(line, "is no result of prompts");
    const auto index = result["index"].get<std::size_t>();
    if (index >= keys.size()) fail(line, fmt::format("is of prompt {}, and there are {}", index, keys.size()));
    if (result["key"].get_ref<const std::string&>() != keys[index])
      fail(line, fmt::format("is of another prompt {}, another model or other options", index));
    if (!done_.insert(index).second) fail(line, fmt::format("is the second result of prompt {}", index));
  }

  [[noreturn]] void fail(std::int64_t line, const std::string& what) const {
    throw FormatError(fmt::format("{}: line {} {}: results go on only after those of the same prompts and options",
                                  path_.string(), line, what),
                      Remedy::results_anew);
  }

  std::filesystem::path path_;
  File file_;
  std::uint64_t whole_bytes_ = 0;
  std::set<std::size_t> done_;
};

/// The prompts without a result, every n-th of which is this rank's; and their results.
class PromptQueue final : public TextQueue {
 public:
  PromptQueue(ModelRuntime& runtime, const Tokenizer& tokenizer, const std::vector<FilePrompt>& prompts,
              const PromptResultsOptions& options, const Logger& log)
      : world_(runtime.world()),
        ranks_(runtime.data_ranks()),
        tokenizer_(tokenizer),
        prompts_(prompts),
        options_(options),
        progress_(log, options.show_progress, kSecondsBetweenLines) {
    for (std::size_t i = 0; i < prompts.size(); ++i) keys_.push_back(key_of(prompts[i], i, options));
    const auto todo = text_of_root(world_, [&] {
      file_.emplace(options, keys_);
      std::string missing;
      for (std::size_t i = 0; i < prompts_.size(); ++i) missing += file_->done().contains(i) ? '0' : '1';
      return missing;
    });
    for (std::size_t i = 0; i < todo.size(); ++i) {
      if (todo[i] == '1') todo_.push_back(i);
    }
    counts_.done_before = static_cast<std::int64_t>(prompts.size() - todo_.size());
    next_ = static_cast<std::size_t>(ranks_.rank);
  }

  TextInWork* next() override {
    if (next_ >= todo_.size()) return nullptr;
    auto work = std::make_unique<PromptWork>(tokenizer_, options_.sampling.stops, todo_[next_]);
    next_ += static_cast<std::size_t>(ranks_.size);
    const auto& prompt = prompts_[work->index].prompt;
    work->sequence.ids = prompt.ids;
    work->left = options_.sampling.num_tokens;
    work->seed = sample_key(options_.sampling.seed, static_cast<std::int64_t>(work->index));
    work->on_token = [work = work.get(), &prompt](std::int32_t id) { return work->take(id, prompt.is_end(id)); };
    return works_.add(std::move(work));
  }

  void ended(TextInWork& text) override {
    const auto owner = works_.take(text);
    const auto& work = *owner;
    const auto& prompt = prompts_[work.index];
    const auto first = std::ssize(prompt.prompt.ids);
    const std::vector<std::int32_t> ids(work.sequence.ids.begin() + first, work.sequence.ids.end());
    new_tokens_ += static_cast<double>(ids.size());
    nlohmann::ordered_json line{{"index", work.index}};
    if (!prompt.id.is_null()) line["id"] = prompt.id;
    line["text"] = json_text(work.text.text());
    line["ended"] = work.at_end ? "eos" : work.text.is_stopped() ? "stop" : "length";
    line["tokens_generated"] = ids;
    line["key"] = keys_[work.index];
    new_lines_ += line.dump() + '\n';
    ++new_results_;
  }

  bool goes_on(bool works) override {
    std::array sums{works ? 1.0 : 0.0, new_results_, new_tokens_};
    world_.all_reduce(sums, Reduce::sum);
    if (sums[1] > 0) {
      const auto lines = world_.gather(new_lines_, 0);
      run_agreed(world_, [&] {
        for (const auto& of_rank : lines) file_->write(of_rank);
      });
      counts_.written += static_cast<std::int64_t>(sums[1]);
      counts_.tokens += static_cast<std::int64_t>(sums[2]);
      new_lines_.clear();
      new_results_ = new_tokens_ = 0;
    }
    if (!todo_.empty()) {
      progress_.show_share("prompts  ", static_cast<double>(counts_.written) / static_cast<double>(todo_.size()),
                           fmt::format("{} of {}", format_count(counts_.written), format_count(todo_.size())));
    }
    return sums[0] > 0;
  }

  PromptResultsCounts counts() const { return counts_; }

 private:
  static constexpr double kSecondsBetweenLines = 30;

  ProcessGroup& world_;
  DataRanks ranks_;
  const Tokenizer& tokenizer_;
  const std::vector<FilePrompt>& prompts_;
  const PromptResultsOptions& options_;
  Progress progress_;
  std::vector<std::string> keys_;   ///< by prompt
  std::optional<ResultFile> file_;  ///< on rank 0
  std::vector<std::size_t> todo_;
  std::size_t next_ = 0;  ///< of todo_
  PromptWorks works_;
  std::string new_lines_;
  double new_results_ = 0, new_tokens_ = 0;  ///< that other ranks do not know of yet
  PromptResultsCounts counts_;
};

}  // namespace

PromptResultsCounts write_prompt_results(ModelRuntime& runtime, const Tokenizer& tokenizer,
                                         const std::vector<FilePrompt>& prompts, const PromptResultsOptions& options,
                                         const Logger& log) {
  const auto start = std::chrono::steady_clock::now();
  check_sampling(options.sampling);
  PromptQueue queue(runtime, tokenizer, prompts, options, log);
  write_texts(runtime, options.sampling, static_cast<std::size_t>(options.batch_size), /*same_texts=*/false, queue);
  auto counts = queue.counts();
  counts.seconds = seconds_since(start);
  return counts;
}

}  // namespace fsdp
