#include "lib/training/evaluate/generate.hpp"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/gguf_metadata.hpp"
#include "lib/base/json_text.hpp"
#include "lib/compute/tensor/parallel.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/text/chat/chat_template.hpp"
#include "lib/text/chat/conversation_encoder.hpp"
#include "lib/text/tokenizer/json_file.hpp"
#include "lib/text/tokenizer/open_tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {

namespace {

void check(const std::vector<std::int32_t>& prompt, std::int64_t vocab) {
  if (prompt.empty()) throw UsageError("--prompt is empty: at least one token is needed to continue from");
  for (const auto id : prompt) {
    if (id < 0 || id >= vocab) {
      throw UsageError("the prompt has token " + std::to_string(id) + ", outside the model's vocabulary of " +
                       std::to_string(vocab));
    }
  }
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double random) {
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < order.size())
    order.resize(static_cast<std::size_t>(options.top_k));
  const double top = logits[static_cast<std::size_t>(order.front())];
  std::vector<double> weights;
  double total = 0;
  for (const auto id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - top) / options.temperature));
    total += weights.back();
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double target = random * kept;
  for (std::size_t i = 0; i < count; ++i) {
    target -= weights[i];
    if (target < 0) return order[i];
  }
  return order[count - 1];
}

namespace {

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
    parallel_for(static_cast<std::int64_t>(texts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        const auto& text = *texts[static_cast<std::size_t>(i)];
        const auto length = static_cast<std::int64_t>(text.sequence.ids.size());
        const auto random = static_cast<double>(sample_key(text.seed, length) >> 11) * 0x1p-53;
        const auto vocab = static_cast<std::size_t>(logits_NV.size(1));
        const auto* logits = logits_NV.const_data_ptr<float>() + static_cast<std::size_t>(i) * vocab;
        drawn[static_cast<std::size_t>(i)] = sample_token({logits, vocab}, options, random);
      }
    });
  }
  if (same_texts) world.broadcast(std::as_writable_bytes(std::span(drawn)), 0);
  return drawn;
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  if (options.num_tokens < 0) throw UsageError("--num-tokens must not be negative");
  if (options.temperature < 0) throw UsageError("--temperature must not be negative (0 takes the most likely token)");
  if (options.top_k < 0) throw UsageError("--top-k must not be negative (0 keeps all)");
  if (options.top_p <= 0 || options.top_p > 1) throw UsageError("--top-p must be in (0, 1]");
  for (const auto& stop : options.stops) {
    if (stop.empty()) throw UsageError("--stop '': an empty text is everywhere; give some text");
  }
}

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
  for (;;) {
    while (texts.size() < most) {
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
  const auto before = static_cast<std::ptrdiff_t>(sequence.ids.size());
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

namespace {

constexpr const char* kKey = "eos_token_id";

std::int32_t read_id(const JsonValue& value) {
  const auto id = value.integer();
  if (id < std::numeric_limits<std::int32_t>::min() || id > std::numeric_limits<std::int32_t>::max())
    value.fail("is no token id");
  return static_cast<std::int32_t>(id);
}

std::vector<std::int32_t> read_ends(const std::filesystem::path& file) {
  const auto json = read_json_object(file);
  const auto value = JsonValue(json, file.string()).get(kKey);
  if (value.is_null()) return {};
  if (!value.json().is_array()) return {read_id(value)};
  std::vector<std::int32_t> ends;
  for (const auto& element : value.elements()) ends.push_back(read_id(element));
  if (ends.empty()) value.fail("is an empty list, expected a token id, some of them or null");
  return ends;
}

/// The ends of a text and of a turn that a GGUF file names.
std::vector<std::int32_t> ends_of_gguf(const std::filesystem::path& file) {
  const auto json = read_gguf_metadata(file);
  const JsonValue root(json, file.string());
  std::vector<std::int32_t> ends;
  for (const auto* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
    if (const auto value = root.get(key); !value.is_null()) ends.push_back(read_id(value));
  return ends;
}

}  // namespace

std::vector<std::int32_t> generation_ends(const std::vector<std::filesystem::path>& directories) {
  for (const auto& directory : directories) {
    if (directory.empty() || directory == kBuiltInTokenizer) continue;  // no model's: the built-in tokenizer
    if (is_gguf_file(directory)) return ends_of_gguf(directory);
    for (const char* name : {"generation_config.json", "config.json"}) {
      std::error_code ignored;
      if (std::filesystem::exists(directory / name, ignored)) return read_ends(directory / name);
    }
  }
  return {};
}

nlohmann::json json_text(const std::string& text) { return parse_json(printable_json(nlohmann::json(text)), "a text"); }

Prompt plain_prompt(const Tokenizer& tokenizer, const std::string& text, std::vector<std::int32_t> ends) {
  Prompt prompt{text, text, prompt_ids(tokenizer, text), std::move(ends)};
  if (const auto eos = tokenizer.eos_id()) prompt.ends.push_back(*eos);
  return prompt;
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

namespace {

ConversationEncoder encoder_of(const Tokenizer& tokenizer, const std::string& tokenizer_name,
                               const ConversationOptions& options) {
  ConversationRules rules;
  rules.chat = find_chat_template(options.chat_template, tokenizer_name, options.model_template);
  rules.marks = options.marks;
  return {tokenizer, std::move(rules)};
}

}  // namespace

ChatPrompts::ChatPrompts(const Tokenizer& tokenizer, const std::string& tokenizer_name,
                         const ConversationOptions& options, std::vector<std::int32_t> ends)
    : encoder_(encoder_of(tokenizer, tokenizer_name, options)), ends_(std::move(ends)) {
  if (const auto end = encoder_.turn_end()) ends_.push_back(*end);
  if (const auto eos = tokenizer.eos_id()) ends_.push_back(*eos);
}

Prompt ChatPrompts::question(const ChatQuestion& question) const {
  auto messages = nlohmann::ordered_json::array();
  const auto add = [&](const char* role, const std::string& content) {
    messages.push_back(nlohmann::ordered_json{{"role", role}, {"content", content}});
  };
  if (question.system) add("system", *question.system);
  add("user", question.user);
  return {question.user, question.user + "\n", encoder_.encode_prompt(messages), ends_};
}

Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends) {
  return ChatPrompts(tokenizer, tokenizer_name, options, std::move(ends)).question(question);
}

}  // namespace fsdp
