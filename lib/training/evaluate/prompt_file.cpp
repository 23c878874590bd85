#include "lib/training/evaluate/prompt_file.hpp"

#include <set>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/python_json.hpp"
#include "lib/base/types/error.hpp"
#include "lib/documents/documents.hpp"
#include "lib/templates/chat/messages.hpp"
#include "lib/training/evaluate/generation_ends.hpp"

namespace fsdp {
namespace {

using Record = nlohmann::ordered_json;

Record parsed(const std::string& line) {
  const PythonJson json(line);
  Record record;
  try {
    record = json.parse();
  } catch (const nlohmann::json::exception&) {
    throw FormatError("is no JSON; JSON Lines has one whole object on every line");
  }
  if (!record.is_object()) throw FormatError("is no object: a prompt is {\"prompt\": TEXT} or {\"messages\": [...]}");
  if (json.holds_half(record)) throw FormatError(std::string("holds ") + PythonJson::kHalfProblem);
  return record;
}

class PromptReader {
 public:
  PromptReader(const Tokenizer& tokenizer, const PromptFileOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  FilePrompt read(const Record& record) {
    FilePrompt prompt{id_of(record), prompt_of(record)};
    if (prompt.prompt.ids.empty()) throw FormatError("has an empty prompt: at least one token is needed to go on from");
    return prompt;
  }
  std::vector<std::string> unread() const { return {unread_.begin(), unread_.end()}; }

 private:
  nlohmann::json id_of(const Record& record) {
    const auto found = record.find("id");
    if (found == record.end() || found->is_null()) return nullptr;
    if (!found->is_string() && !found->is_number_integer())
      throw FormatError("'id' is neither a text nor a whole number");
    nlohmann::json id(*found);
    if (!ids_.insert(printable_json(id)).second)
      throw FormatError("'id' is " + printable_json(id) + ", as of a line before: results could not be told apart");
    return id;
  }

  Prompt prompt_of(const Record& record) {
    const bool has_prompt = record.contains("prompt"), has_messages = record.contains("messages");
    if (has_prompt == has_messages)
      throw FormatError(
          std::string(has_prompt ? "has both 'prompt' and 'messages'" : "has neither 'prompt' nor 'messages'") +
          ": give one of them");
    if (has_messages) {
      note_unread(unread_keys(record, "messages"));
      return {"", "", chat().encoder().encode_prompt(record, "messages"), chat().ends()};
    }
    std::vector<std::string> others;
    for (const auto& [key, value] : record.items()) {
      if (key != "prompt") others.push_back(key);
    }
    note_unread(others);
    const auto& prompt = record["prompt"];
    if (!prompt.is_string()) throw FormatError("'prompt' is no text; a conversation is given as 'messages'");
    const auto text = prompt.get<std::string>();
    return options_.chat ? chat().question({text, options_.system}) : plain_prompt(tokenizer_, text, options_.ends);
  }

  /// A template is looked for where one is needed.
  const ChatPrompts& chat() {
    if (!chat_) chat_.emplace(tokenizer_, options_.tokenizer_name, options_.conversations, options_.ends);
    return *chat_;
  }

  void note_unread(const std::vector<std::string>& keys) {
    for (const auto& key : keys) {
      if (key != "id") unread_.insert(key);
    }
  }

  const Tokenizer& tokenizer_;
  const PromptFileOptions& options_;
  std::optional<ChatPrompts> chat_;
  std::set<std::string> ids_, unread_;
};

}  // namespace

PromptFile read_prompts(const std::filesystem::path& file, const Tokenizer& tokenizer,
                        const PromptFileOptions& options) {
  const auto lines = detail::open_json_records(file);
  PromptReader reader(tokenizer, options);
  PromptFile found;
  std::string line;
  while (lines->next(line)) {
    try {
      found.prompts.push_back(reader.read(parsed(line)));
    } catch (const FormatError& error) {
      throw FormatError(lines->where() + ": " + error.what(), error.advice());
    }
  }
  if (found.prompts.empty()) throw FormatError(file.string() + ": holds no prompt");
  found.ignored.add(file.string(), reader.unread());
  return found;
}

}  // namespace fsdp
