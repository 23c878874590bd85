// Answers tests/differential: reads one question per line from standard input and writes one answer per line. Both are
// JSON. A question:
//   {"tokenizer": FILE, "texts": [TEXT, ...], "generated": [IDS, ...]}  reads tokenizer.json once for all
//   {"template": SOURCE, "variables": {NAME: VALUE}}                    renders a chat template
// The answers: {"texts": [{"ids", "marked", "document", "decoded"}, ...], "generated": [TEXT, ...]} with `marked` for
// ids where names of special tokens are tokens, and the texts that lists of ids continue a text with; {"text",
// "generated"} with byte ranges of {% generation %}; or {"refused": MESSAGE}.
#include <cstdint>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"
#include "lib/templates/jinja/jinja.hpp"
#include "lib/tokenizers/files/tokenizer_json.hpp"
#include "lib/tokenizers/vocabulary/generated_text.hpp"

namespace {

using Json = nlohmann::ordered_json;

Json encode_texts(const Json& question) {
  const auto tokenizer = fsdp::make_tokenizer_json(question.at("tokenizer").get<std::string>());
  Json answers = Json::array();
  for (const auto& line : question.at("texts")) {
    const auto text = line.get<std::string>();
    const auto marked = tokenizer->encode_marked(text, {}).ids;
    answers.push_back({{"ids", tokenizer->encode(text)},
                       {"marked", marked},
                       {"document", tokenizer->encode_document(text)},
                       {"decoded", tokenizer->decode(marked)}});
  }
  Json generated = Json::array();
  for (const auto& ids : question.at("generated"))
    generated.push_back(fsdp::continuation(*tokenizer, ids.get<std::vector<std::int32_t>>()));
  return {{"texts", answers}, {"generated", generated}};
}

Json render(const Json& question) {
  std::tm now{};  // 2026-03-09 07:05:03, a Monday
  now.tm_year = 126, now.tm_mon = 2, now.tm_mday = 9, now.tm_hour = 7, now.tm_min = 5, now.tm_sec = 3;
  now.tm_wday = 1, now.tm_yday = 67;
  const fsdp::JinjaTemplate source(question.at("template").get<std::string>());
  const auto rendered = source.render(question.at("variables"), now);
  Json generated = Json::array();
  for (const auto& [begin, end] : rendered.marked) generated.push_back({begin, end});
  return {{"text", rendered.text}, {"generated", generated}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      const auto question = fsdp::PythonJson(line).parse();  // variables of templates keep all digits
      answer = question.contains("template") ? render(question) : encode_texts(question);
    } catch (const fsdp::Error& error) {
      answer = {{"refused", error.what()}};
    }
    // A decoded text may end within a character.
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
