#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {

/// A text in work that goes on from one of many prompts.
struct PromptWork : TextInWork {
  PromptWork(const Tokenizer& tokenizer, const std::vector<std::string>& stops, std::size_t of)
      : text(tokenizer, stops), index(of) {}

  /// Takes the next id. \return false when it, or a stop text, ends the text
  bool take(std::int32_t id, bool is_end) {
    at_end = is_end;
    if (!at_end) text.add(id);
    return !at_end && !text.is_stopped();
  }

  WrittenText text;
  std::size_t index;  ///< of the prompt
  bool at_end = false;
};

/// The texts of a queue that are in work.
class PromptWorks {
 public:
  TextInWork* add(std::unique_ptr<PromptWork> work) { return works_.emplace_back(std::move(work)).get(); }

  /// Takes one out that has ended.
  std::unique_ptr<PromptWork> take(TextInWork& ended) {
    const auto found =
        std::find_if(works_.begin(), works_.end(), [&](const auto& work) { return work.get() == &ended; });
    auto work = std::move(*found);
    works_.erase(found);
    work->text.rest();
    return work;
  }

 private:
  std::vector<std::unique_ptr<PromptWork>> works_;
};

}  // namespace fsdp
