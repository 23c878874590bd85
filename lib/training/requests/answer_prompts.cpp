#include "lib/training/requests/answer_prompts.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <sstream>

#include "lib/tokenizers/vocabulary/generated_text.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/prompt_works.hpp"

namespace fsdp {
namespace {

/// Every n-th prompt is this rank's.
class AnswerQueue final : public TextQueue {
 public:
  AnswerQueue(ModelRuntime& runtime, const Tokenizer& tokenizer, const std::vector<AskedPrompt>& prompts,
              const AnswerPromptsOptions& options)
      : world_(runtime.world()),
        step_(static_cast<std::size_t>(runtime.data_ranks().size)),
        next_(static_cast<std::size_t>(runtime.data_ranks().rank)),
        tokenizer_(tokenizer),
        prompts_(prompts),
        options_(options) {}

  TextInWork* next() override {
    if (next_ >= prompts_.size()) return nullptr;
    const auto& prompt = prompts_[next_];
    auto work = std::make_unique<PromptWork>(tokenizer_, prompt.stops, next_);
    next_ += step_;
    work->sequence.ids = prompt.ids;
    work->left = prompt.most_tokens;
    work->on_token = [this, work = work.get()](std::int32_t id) {
      return work->take(id, std::ranges::find(options_.ends, id) != options_.ends.end());
    };
    return works_.add(std::move(work));
  }

  void ended(TextInWork& text) override {
    const auto owner = works_.take(text);
    auto& work = *owner;
    auto answer = work.text.text();
    // The answer is a text by itself: of a vocabulary that puts a space before texts, its first one is none of it.
    const auto begin = std::ssize(prompts_[work.index].ids);
    const auto ids = std::span(work.sequence.ids).subspan(static_cast<std::size_t>(begin));
    if (answer.starts_with(' ') &&
        leading_spaces(tokenizer_.decode(known(ids))) < leading_spaces(continuation(tokenizer_, ids)))
      answer.erase(0, 1);
    answers_.emplace_back(work.index, std::move(answer));
  }

  bool goes_on(bool works) override {
    std::array sums{works ? 1.0 : 0.0, static_cast<double>(answers_.size())};
    world_.all_reduce(sums, Reduce::sum);
    if (options_.progress) options_.progress(sums[1] / static_cast<double>(prompts_.size()));
    is_stopped_ = sums[0] > 0 && options_.stopped && options_.stopped();
    return sums[0] > 0 && !is_stopped_;
  }

  const std::vector<std::pair<std::size_t, std::string>>& answers() const { return answers_; }
  bool is_stopped() const { return is_stopped_; }

 private:
  static std::size_t leading_spaces(const std::string& text) {
    return std::min(text.find_first_not_of(' '), text.size());
  }

  /// A model may have more ids than its tokenizer.
  std::vector<std::int32_t> known(std::span<const std::int32_t> ids) const {
    std::vector<std::int32_t> all(ids.begin(), ids.end());
    std::erase_if(all, [&](std::int32_t id) { return id >= tokenizer_.vocab_size(); });
    return all;
  }

  ProcessGroup& world_;
  std::size_t step_, next_;
  const Tokenizer& tokenizer_;
  const std::vector<AskedPrompt>& prompts_;
  const AnswerPromptsOptions& options_;
  PromptWorks works_;
  bool is_stopped_ = false;
  std::vector<std::pair<std::size_t, std::string>> answers_;  ///< of this rank
};

}  // namespace

std::optional<std::vector<std::string>> answer_prompts(ModelRuntime& runtime, const Tokenizer& tokenizer,
                                                       const std::vector<AskedPrompt>& prompts,
                                                       const AnswerPromptsOptions& options) {
  std::vector<std::string> answers(prompts.size());
  if (prompts.empty()) return answers;
  SamplingOptions sampling;
  sampling.temperature = 0;
  AnswerQueue queue(runtime, tokenizer, prompts, options);
  write_texts(runtime, sampling, static_cast<std::size_t>(options.batch_size), /*same_texts=*/false, queue);
  if (queue.is_stopped()) return std::nullopt;
  // "INDEX BYTES TEXT" of each answer.
  std::string mine;
  for (const auto& [index, text] : queue.answers())
    ((mine += std::to_string(index)) += ' ') += std::to_string(text.size()) + ' ' + text;
  std::string all;
  for (const auto& of_rank : runtime.world().gather(mine, 0)) all += of_rank;
  std::istringstream lines(runtime.world().broadcast_text(all, 0));
  for (std::size_t index = 0, bytes = 0; lines >> index >> bytes;) {
    lines.get();
    answers[index].resize(bytes);
    lines.read(answers[index].data(), static_cast<std::streamsize>(bytes));
  }
  return answers;
}

}  // namespace fsdp
