#include "apps/common/text_options.hpp"

#include <map>

#include "apps/common/app_main.hpp"
#include "lib/base/error.hpp"

namespace fsdp {
namespace {

/// Adds an option whose value is one of several words.
template <class Value>
CLI::Option* add_choice(CLI::App& app, const char* name, Value& value, const std::map<std::string, Value>& choices,
                        const std::string& description) {
  const auto read = [&value, choices, name](const std::string& text) {
    const auto found = choices.find(text);
    if (found == choices.end()) {
      std::string words;
      for (const auto& [word, unused] : choices) words += (words.empty() ? "" : ", ") + word;
      throw UsageError("--" + std::string(name) + " is '" + text + "', choose from " + words);
    }
    value = found->second;
  };
  return app.add_option_function<std::string>(spellings(name), read, description);
}

}  // namespace

void add_conversation_options(CLI::App& app, ConversationOptions& o, const std::string& form_option,
                              const std::string& group) {
  app.add_option_function<std::string>(
         spellings(form_option),
         [&o, form_option](const std::string& text) { o.form = parse_data_form(text, "--" + form_option); },
         "what a sample of JSON Lines or Parquet is: text, prompt-completion, messages, or auto: by its keys")
      ->default_str("auto")
      ->group(group);
  app.add_option(
         spellings("chat-template"), o.chat_template,
         "how messages become a text: chatml, qwen2, qwen2.5, llama3, llama2, mistral, gemma, gemma3, or a file "
         "with one of these templates; default: the tokenizer's own")
      ->group(group);
  add_choice<TrainOn>(app, "train-on", o.train_on, {{"answers", TrainOn::answers}, {"all", TrainOn::all}},
                      "what of conversations and completions the loss counts: answers with their end marks, or all")
      ->default_str("answers")
      ->group(group);
  add_choice<PairEncoding>(app, "pairs", o.pairs,
                           {{"joint", PairEncoding::joint}, {"separate", PairEncoding::separate}},
                           "encode a prompt and its completion as one text (joint) or each by itself (separate)")
      ->default_str("joint")
      ->group(group);
  add_choice<MarksInTexts>(
      app, "marks", o.marks, {{"tokens", MarksInTexts::tokens}, {"plain", MarksInTexts::plain_text}},
      "what a special token's name inside a message, prompt or completion is: the token, or plain characters")
      ->default_str("tokens")
      ->group(group);
}

}  // namespace fsdp
