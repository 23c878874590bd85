#include "lib/text/chat/conversation_options.hpp"

#include <array>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

struct NamedForm {
  DataForm form;
  const char* name;
};
constexpr std::array<NamedForm, 4> kForms{{{DataForm::automatic, "auto"},
                                           {DataForm::text, "text"},
                                           {DataForm::prompt_completion, "prompt-completion"},
                                           {DataForm::messages, "messages"}}};

}  // namespace

const char* name_of(DataForm form) {
  for (const auto& entry : kForms) {
    if (entry.form == form) return entry.name;
  }
  return "";
}

DataForm parse_data_form(const std::string& name, const std::string& option) {
  for (const auto& entry : kForms) {
    if (entry.name == name) return entry.form;
  }
  throw UsageError(option + " is '" + name + "', choose from auto, text, prompt-completion, messages");
}

}  // namespace fsdp
