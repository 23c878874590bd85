#pragma once
#include <string>

#include "lib/chat/conversation_choices.hpp"
#include "lib/corpus/data_form.hpp"

namespace fsdp {

/// How prompts with completions and conversations are read; nothing of it concerns texts.
struct ConversationOptions {
  DataForm form = DataForm::automatic;
  TrainOn train_on = TrainOn::answers;
  std::string chat_template;  ///< a name, a file or a directory; empty: the tokenizer's own
  MarksInTexts marks = MarksInTexts::tokens;
  PairEncoding pairs = PairEncoding::joint;
};

}  // namespace fsdp
