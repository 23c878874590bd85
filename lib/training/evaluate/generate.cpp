#include "lib/training/evaluate/generate.hpp"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/ops/rowwise_ops.hpp"
#include "lib/compute/tensor/parallel.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {
namespace {

void check(const std::vector<std::int32_t>& prompt, std::int64_t vocab) {
  if (prompt.empty()) throw RequestError("the prompt is empty: at least one token is needed to continue from");
  for (const auto id : prompt) {
    if (id < 0 || id >= vocab) {
      throw RequestError("the prompt has token " + std::to_string(id) + ", outside the model's vocabulary of " +
                         std::to_string(vocab));
    }
  }
}

/// The one text of generate().
class SingleText final : public TextQueue {
 public:
  explicit SingleText(TextInWork& text) : text_(&text) {}
  TextInWork* next() override { return std::exchange(text_, nullptr); }
  void ended(TextInWork&) override {}
  bool goes_on(bool works) override { return works; }

 private:
  TextInWork* text_;
};

/// Returns the next id of each text, on rank 0's draw where all ranks have the same texts.
std::vector<std::int32_t> draw(ProcessGroup& world, const std::vector<TextInWork*>& texts, const at::Tensor& logits_NV,
                               const SamplingOptions& options, bool same_texts) {
  std::vector<std::int32_t> drawn(texts.size());
  if (!same_texts || world.rank() == 0) {
    parallel_for(std::ssize(texts), 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        const auto& text = *element(texts, i);
        const auto length = std::ssize(text.sequence.ids);
        const auto random = static_cast<double>(sample_key(text.seed, length) >> 11) * 0x1p-53;
        const auto vocab = static_cast<std::size_t>(logits_NV.size(1));
        const auto* logits = logits_NV.const_data_ptr<float>() + static_cast<std::size_t>(i) * vocab;
        element(drawn, i) = sample_token({logits, vocab}, options, random);
      }
    });
  }
  if (same_texts) world.broadcast(std::as_writable_bytes(std::span(drawn)), 0);
  return drawn;
}

}  // namespace

void write_texts(ModelRuntime& runtime, const SamplingOptions& options, std::size_t most, bool same_texts,
                 TextQueue& queue) {
  const WithoutAutograd guard;
  std::vector<TextInWork*> texts;
  const auto drop_ended = [&] {
    std::erase_if(texts, [&](TextInWork* text) {
      if (text->left > 0) return false;
      queue.ended(*text);
      return true;
    });
  };
  // A step has kRowsAlike rows in any case: up to there another text costs its memory alone, so it may begin where the
  // caches of `most` texts as long as the model takes have room for it.
  const auto positions = longest_row(runtime.decoder().config);
  const auto has_room = [&] {
    if (texts.size() < most) return true;
    if (same_texts || texts.size() >= static_cast<std::size_t>(RowwiseOps::kRowsAlike)) return false;
    auto tokens = positions;
    for (const auto* text : texts) tokens += std::min(std::ssize(text->sequence.ids) + text->left, positions);
    return tokens <= static_cast<std::int64_t>(most) * positions;
  };
  for (;;) {
    for (std::size_t begun = 0; begun < most && has_room(); ++begun) {
      auto* text = queue.next();
      if (text == nullptr) break;
      texts.push_back(text);
      drop_ended();  // one that is to have no tokens
    }
    if (!queue.goes_on(!texts.empty())) return;
    std::vector<DecodedSequence*> sequences;
    for (auto* text : texts) sequences.push_back(&text->sequence);
    const auto logits_NV = decode_step(runtime, sequences, {options.no_cache, !same_texts});
    const auto drawn = draw(runtime.world(), texts, logits_NV, options, same_texts);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      auto& text = *texts[i];
      text.sequence.ids.push_back(drawn[i]);
      --text.left;
      if (text.on_token && !text.on_token(drawn[i])) text.left = 0;
    }
    drop_ended();
  }
}

std::vector<std::int32_t> generate(ModelRuntime& runtime, DecodedSequence& sequence, const SamplingOptions& options,
                                   const TokenSink& on_token) {
  check(sequence.ids, runtime.decoder().config.vocab_size);
  check_sampling(options);
  const auto before = std::ssize(sequence.ids);
  TextInWork text{std::move(sequence), options.num_tokens, options.seed, on_token};
  SingleText queue(text);
  write_texts(runtime, options, 1, /*same_texts=*/true, queue);
  sequence = std::move(text.sequence);
  return {sequence.ids.begin() + before, sequence.ids.end()};
}

std::vector<std::int32_t> generate(ModelRuntime& runtime, std::vector<std::int32_t> prompt,
                                   const SamplingOptions& options, const TokenSink& on_token) {
  DecodedSequence sequence;
  sequence.ids = std::move(prompt);
  return generate(runtime, sequence, options, on_token);
}

void write_text(ModelRuntime& runtime, const Tokenizer& tokenizer, const Prompt& prompt,
                const SamplingOptions& sampling, bool print, nlohmann::json& report) {
  const auto show = [&](const std::string& text) {
    if (print && runtime.world().rank() == 0) std::cout << text << std::flush;
  };
  show(prompt.shown);
  WrittenText text(tokenizer, sampling.stops);
  bool at_end = false;
  const auto ids = generate(runtime, prompt.ids, sampling, [&](std::int32_t id) {
    at_end = prompt.is_end(id);
    if (!at_end) show(text.add(id));
    return !at_end && !text.is_stopped();
  });
  show(text.rest() + "\n");
  report["prompt"] = json_text(prompt.text);
  report["prompt_tokens"] = prompt.ids;
  report["tokens_generated"] = ids;
  report["text"] = json_text(text.text());
  report["ended"] = at_end ? "eos" : text.is_stopped() ? "stop" : "length";
}

}  // namespace fsdp
