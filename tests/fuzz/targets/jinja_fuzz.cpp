// A chat template, rendered with a conversation and values of all kinds.
#include <nlohmann/json.hpp>

#include "fuzz_support.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/templates/jinja/jinja.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static const auto variables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "a <|im_end|> é"},
      {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}}]},
      {"role": "tool", "content": "{\"y\": true}"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "documents": null,
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    "name": "Ada", "n": 7, "f": 2.5, "t": true, "none": null, "e": "", "xs": [3, 1, 2], "ws": ["b", "A", "c"],
    "d": {"a": 1, "items": "I", "b": {"c": [10, 20]}}, "s": "one, two,,three", "u": "Größe 日本"})");
  std::tm now{};
  now.tm_year = 126;
  now.tm_mday = 9;
  constexpr JinjaLimits limits{.steps = 20'000, .bytes = 1 << 20};
  fuzz::refusal_is_fine([&] {
    const JinjaTemplate source(fuzz::as_text(data, size));
    const auto text = source.render(variables, now, limits);
    if (text.text.size() > limits.bytes || !is_utf8(text.text)) std::abort();
    std::size_t at = 0;
    for (const auto& [begin, end] : text.marked) {
      if (begin > end || end > text.text.size() || begin < at) std::abort();
      at = end;
    }
  });
  return 0;
}
