#include "apps/common/shared_options.hpp"

#include <array>

namespace fsdp {
namespace {

using enum AtRestart;

constexpr std::array kNf4{NamedValue<bool>{"nf4", true}, NamedValue<bool>{"none", false}};

}  // namespace

void add_quantize_options(OptionTable& t, QuantizeConfig& o, const std::string& help) {
  t.add_choice("quantize", kNf4, o.nf4, help, {.at_restart = checkpoint});
  t.add("double-quant", o.double_quant, "with --quantize nf4: store the scales in 8-bit form, too",
        {.at_restart = checkpoint});
}

void add_layout_options(OptionTable& t, bool& stream, bool& documents) {
  t.add("stream", stream,
        "join texts and cut them into rows of --seq-len tokens (the default for plain text); text data only",
        {.at_restart = saved});
  t.add(
      "documents", documents,
      "take each text as a sample of its own (the default for JSON Lines, Parquet, Arrow and CSV), of which the first "
      "--seq-len token IDs are read, even if that leaves out most of the data",
      {.at_restart = saved});
}

void add_token_dtype(OptionTable& t, std::optional<NumberType>& type) {
  t.add_choice(
      "token-dtype", kRawTypeNames, type,
      "type of the ids in token files (.bin) that hold ids and nothing else, as nanoGPT writes them: uint16 or "
      "uint32",
      {.at_restart = saved});
}

void add_conversation_options(OptionTable& t, ConversationOptions& o, const std::string& form_option) {
  t.add_choice(
      form_option, kDataFormNames, o.form,
      "form of a sample of JSON Lines or Parquet: text, prompt-completion, messages, preference, label (a text with "
      "one), or auto (by its keys)",
      {.at_restart = saved});
  t.add("chat-template", o.chat_template,
        "template that turns messages into text: chatml, qwen2, qwen2.5, llama3, llama2, mistral, gemma, gemma3, or a "
        "file with a template in Jinja; default: the tokenizer's own",
        {.suggestions = "chatml, qwen2, qwen2.5, llama3, llama2, mistral, gemma, gemma3",
         .path = PathKind::chat_template,
         .at_restart = saved});
  t.add_choice("train-on", kTrainOnNames, o.train_on,
               "tokens of conversations and completions that count in the loss: answers (with their end marks) or all",
               {.at_restart = saved});
  t.add_choice("pairs", kPairEncodingNames, o.pairs,
               "encoding of a prompt and its completion: joint (as one text) or separate", {.at_restart = saved});
  t.add("max-prompt-length", o.max_prompt_length,
        "tokens at the end of a preference's or judged answer's prompt that are kept; 0: all",
        {.range = {.from = 0}, .unit = "tokens", .at_restart = saved});
  t.add_choice(
      "truncation", kTruncationNames, o.truncation,
      "part of a preference's side or a judged answer that is kept where it is too long: keep-start or keep-end",
      {.at_restart = saved});
  t.add_choice("marks", kMarkNames, o.marks,
               "encoding of a special token's name inside a message, prompt or completion: tokens (as this token) or "
               "plain (as characters)",
               {.at_restart = saved});
}

void add_task_names(OptionTable& t, std::vector<std::string>& names, std::vector<std::string>& folders,
                    const std::string& help) {
  t.add("tasks", names, help)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  t.add("include-path", folders, "folder whose task files --tasks may name; may be repeated",
        {.path = PathKind::folder})
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace fsdp
