#include "apps/common/shared_options.hpp"

#include <array>

namespace fsdp {
namespace {

using enum AtRestart;

constexpr std::array kNf4{NamedValue<bool>{"nf4", true}, NamedValue<bool>{"none", false}};

}  // namespace

void add_quantize_options(OptionTable& t, QuantizeConfig& o, const std::string& help) {
  t.add_choice("quantize", kNf4, o.nf4, help, {.at_restart = checkpoint});
  t.add("double-quant", o.double_quant, "with --quantize: its scales in 8 bits, too", {.at_restart = checkpoint});
}

void add_conversation_options(OptionTable& t, ConversationOptions& o, const std::string& form_option) {
  t.add_choice(form_option, kDataFormNames, o.form,
               "what a sample of JSON Lines or Parquet is: text, prompt-completion, messages, or auto: by its keys",
               {.at_restart = saved});
  t.add("chat-template", o.chat_template,
        "how messages become a text: chatml, qwen2, qwen2.5, llama3, llama2, mistral, gemma, gemma3, or a file "
        "with one of these templates; default: the tokenizer's own",
        {.suggestions = "chatml, qwen2, qwen2.5, llama3, llama2, mistral, gemma, gemma3",
         .path = PathKind::chat_template,
         .at_restart = saved});
  t.add_choice("train-on", kTrainOnNames, o.train_on,
               "what of conversations and completions the loss counts: answers with their end marks, or all",
               {.at_restart = saved});
  t.add_choice("pairs", kPairEncodingNames, o.pairs,
               "encode a prompt and its completion as one text (joint) or each by itself (separate)",
               {.at_restart = saved});
  t.add_choice("marks", kMarkNames, o.marks,
               "what a special token's name inside a message, prompt or completion is: the token, or plain characters",
               {.at_restart = saved});
}

}  // namespace fsdp
