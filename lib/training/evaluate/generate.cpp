#include "lib/training/evaluate/generate.hpp"

#include <ATen/ops/empty.h>

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
#include "lib/base/json_text.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/text/chat/chat_template.hpp"
#include "lib/text/chat/conversation_encoder.hpp"
#include "lib/text/tokenizer/generated_text.hpp"
#include "lib/text/tokenizer/json_file.hpp"
#include "lib/text/tokenizer/open_tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

void forward_logits(ModelRuntime& runtime, const MicroBatch& batch, const LogitsBody& body) {
  const WithoutAutograd guard;
  // As many as the loss of training takes at once: fewer rows slow the matrix product down.
  constexpr std::int64_t kRows = 512, kSmall_bytes = std::int64_t{16} << 20;
  const auto row_bytes = runtime.decoder().config.vocab_size * static_cast<std::int64_t>(sizeof(float));
  const auto piece = std::max(kRows, kSmall_bytes / row_bytes);
  const auto& head = *runtime.decoder().loss;
  runtime.engine().evaluate(batch, [&](LayerParams params, const at::Tensor& x_ND) {
    const auto tokens = x_ND.size(0);
    for (std::int64_t first = 0; first < tokens; first += piece) {
      auto logits_NV = head.logits(params, x_ND.narrow(0, first, std::min(piece, tokens - first)));
      // Its rows may be padded: seen with the padding they need not be copied.
      logits_NV = logits_NV.as_strided({logits_NV.size(0), logits_NV.stride(0)}, {logits_NV.stride(0), 1});
      body(first, logits_NV);
    }
    return LossSum{};
  });
}

namespace {

MicroBatch one_sequence(std::span<const std::int32_t> ids, std::int64_t first_position, const Ops& ops) {
  MicroBatch batch;
  batch.rows = 1;
  batch.length = static_cast<std::int64_t>(ids.size());
  batch.first_position = first_position;
  batch.ids_N = at::empty({batch.length}, at::kInt);
  std::copy(ids.begin(), ids.end(), batch.ids_N.data_ptr<std::int32_t>());
  batch.ids_N = ops.to_device(batch.ids_N);
  return batch;
}

/// Logits of the token after `ids`, which sit at [first_position, first_position + ids.size()) after the cached ones.
at::Tensor forward(ModelRuntime& runtime, std::span<const std::int32_t> ids, std::vector<LayerCache>& caches,
                   std::int64_t cached) {
  auto& engine = runtime.engine();
  const auto& decoder = runtime.decoder();
  const auto batch = one_sequence(ids, cached, runtime.ops());
  at::Tensor x_ND;
  engine.with_layer_parameters(0, [&](LayerParams p) { x_ND = decoder.layers[0]->forward(p, batch, {}, nullptr); });
  for (std::size_t b = 0; b < caches.size(); ++b) {
    engine.with_layer_parameters(
        b + 1, [&](LayerParams p) { x_ND = decoder.decode_block(static_cast<int>(b), p, x_ND, caches[b], cached); });
  }
  at::Tensor logits;
  engine.with_layer_parameters(caches.size() + 1, [&](LayerParams p) { logits = decoder.last_logits(p, x_ND); });
  return runtime.ops().to_host(logits.reshape({-1}).contiguous());
}

void check(const std::vector<std::int32_t>& prompt, const SamplingOptions& options, std::int64_t vocab) {
  if (prompt.empty()) throw UsageError("--prompt is empty: at least one token is needed to continue from");
  for (const auto id : prompt) {
    if (id < 0 || id >= vocab) {
      throw UsageError("the prompt has token " + std::to_string(id) + ", outside the model's vocabulary of " +
                       std::to_string(vocab));
    }
  }
  if (options.num_tokens < 0) throw UsageError("--num-tokens must not be negative");
  if (options.temperature < 0) throw UsageError("--temperature must not be negative (0 takes the most likely token)");
  if (options.top_k < 0) throw UsageError("--top-k must not be negative (0 keeps all)");
  if (options.top_p <= 0 || options.top_p > 1) throw UsageError("--top-p must be in (0, 1]");
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

std::vector<std::int32_t> generate(ModelRuntime& runtime, std::vector<std::int32_t> prompt,
                                   const SamplingOptions& options, const TokenSink& on_token) {
  const WithoutAutograd guard;
  const auto& config = runtime.decoder().config;
  check(prompt, options, config.vocab_size);
  auto ids = std::move(prompt);
  const auto prompt_size = ids.size();
  std::vector<LayerCache> caches(static_cast<std::size_t>(config.num_layers));
  std::int64_t cached = 0;
  const auto positions = longest_row(config);
  for (std::int64_t i = 0; i < options.num_tokens; ++i) {
    const auto length = static_cast<std::int64_t>(ids.size());
    // Positions are absolute: past the last one the window slides and nothing cached stays valid; neither does it where
    // rotary frequencies depend on the length.
    const bool restart = options.no_cache || length > positions || !same_rope(config, cached, length);
    if (restart) cached = 0;
    const auto first = std::max<std::int64_t>(length - positions, 0) + cached;
    const auto logits = forward(runtime, std::span(ids).subspan(static_cast<std::size_t>(first)), caches, cached);
    cached = length;
    std::int32_t next = 0;
    if (runtime.world().rank() == 0) {
      const double random = static_cast<double>(sample_key(options.seed, length) >> 11) * 0x1p-53;
      next = sample_token({logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel())}, options, random);
    }
    runtime.world().broadcast(std::as_writable_bytes(std::span(&next, 1)), 0);
    ids.push_back(next);
    if (on_token && !on_token(next)) break;
  }
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt_size));
  return ids;
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

}  // namespace

std::vector<std::int32_t> generation_ends(const std::vector<std::filesystem::path>& directories) {
  for (const auto& directory : directories) {
    if (directory.empty() || directory == kBuiltInTokenizer) continue;  // no model's: the built-in tokenizer
    for (const char* name : {"generation_config.json", "config.json"}) {
      std::error_code ignored;
      if (std::filesystem::exists(directory / name, ignored)) return read_ends(directory / name);
    }
  }
  return {};
}

namespace {

/// Prints tokens as they come, never half a character.
class TextPrinter {
 public:
  TextPrinter(const Tokenizer& tokenizer, bool enabled) : text_(tokenizer), enabled_(enabled) {}
  void add(std::int32_t id) { print(text_.add(id)); }
  void print(const std::string& text) const {
    if (enabled_) std::cout << text << std::flush;
  }
  void end() { print(text_.end() + "\n"); }

 private:
  GeneratedText text_;
  bool enabled_;
};

}  // namespace

nlohmann::json json_text(const std::string& text) { return parse_json(printable_json(nlohmann::json(text)), "a text"); }

Prompt plain_prompt(const Tokenizer& tokenizer, const std::string& text, std::vector<std::int32_t> ends) {
  Prompt prompt{text, text, prompt_ids(tokenizer, text), std::move(ends)};
  if (const auto eos = tokenizer.eos_id()) prompt.ends.push_back(*eos);
  return prompt;
}

void write_text(ModelRuntime& runtime, const Tokenizer& tokenizer, const Prompt& prompt,
                const SamplingOptions& sampling, bool print, nlohmann::json& report) {
  TextPrinter printer(tokenizer, print && runtime.world().rank() == 0);
  printer.print(prompt.shown);
  const auto ids = generate(runtime, prompt.ids, sampling, [&](std::int32_t id) {
    if (prompt.is_end(id)) return false;
    printer.add(id);
    return true;
  });
  printer.end();
  const bool ended = !ids.empty() && prompt.is_end(ids.back());
  report["prompt"] = json_text(prompt.text);
  report["prompt_tokens"] = prompt.ids;
  report["tokens_generated"] = ids;
  report["text"] = json_text(continuation(tokenizer, std::span(ids).first(ids.size() - (ended ? 1 : 0))));
  report["ended"] = ended ? "eos" : "length";
}

Prompt chat_prompt(const Tokenizer& tokenizer, const std::string& tokenizer_name, const ConversationOptions& options,
                   const ChatQuestion& question, std::vector<std::int32_t> ends) {
  ConversationRules rules;
  rules.chat = find_chat_template(options.chat_template, tokenizer_name, options.model_template);
  rules.marks = options.marks;
  const ConversationEncoder encoder(tokenizer, std::move(rules));
  auto messages = nlohmann::ordered_json::array();
  const auto add = [&](const char* role, const std::string& content) {
    messages.push_back(nlohmann::ordered_json{{"role", role}, {"content", content}});
  };
  if (question.system) add("system", *question.system);
  add("user", question.user);
  Prompt prompt{question.user, question.user + "\n", encoder.encode_prompt(messages), std::move(ends)};
  if (const auto end = encoder.turn_end()) prompt.ends.push_back(*end);
  if (const auto eos = tokenizer.eos_id()) prompt.ends.push_back(*eos);
  return prompt;
}

}  // namespace fsdp
