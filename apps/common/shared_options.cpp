#include "apps/common/shared_options.hpp"

#include <array>

#include "apps/common/app_main.hpp"

namespace fsdp {

namespace {
constexpr std::array kNf4{NamedValue<bool>{"nf4", true}, NamedValue<bool>{"none", false}};
}

void add_quantize_options(CLI::App& app, QuantizeConfig& o, const std::string& help, const std::string& group) {
  add_choice(app, "--quantize", kNf4, o.nf4, help)->default_str("none")->group(group);
  app.add_flag(spellings("double-quant"), o.double_quant, "with --quantize: its scales in 8 bits, too")->group(group);
}

void add_conversation_options(CLI::App& app, ConversationOptions& o, const std::string& form_option,
                              const std::string& group) {
  add_choice(app, spellings(form_option), kDataFormNames, o.form,
             "what a sample of JSON Lines or Parquet is: text, prompt-completion, messages, or auto: by its keys")
      ->default_str("auto")
      ->group(group);
  app.add_option(
         spellings("chat-template"), o.chat_template,
         "how messages become a text: chatml, qwen2, qwen2.5, llama3, llama2, mistral, gemma, gemma3, or a file "
         "with one of these templates; default: the tokenizer's own")
      ->group(group);
  add_choice(app, spellings("train-on"), kTrainOnNames, o.train_on,
             "what of conversations and completions the loss counts: answers with their end marks, or all")
      ->default_str("answers")
      ->group(group);
  add_choice(app, spellings("pairs"), kPairEncodingNames, o.pairs,
             "encode a prompt and its completion as one text (joint) or each by itself (separate)")
      ->default_str("joint")
      ->group(group);
  add_choice(app, spellings("marks"), kMarkNames, o.marks,
             "what a special token's name inside a message, prompt or completion is: the token, or plain characters")
      ->default_str("tokens")
      ->group(group);
}

}  // namespace fsdp
