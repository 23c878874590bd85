#include "lib/text/sources/document_encoder.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"
#include "lib/text/sources/python_json.hpp"

namespace fsdp {
namespace {

nlohmann::json parse_object(std::string_view text) {
  auto record = parse_json(text, "the object");
  if (!record.is_object()) throw FormatError("holds no object {...}");
  return record;
}

[[noreturn]] void refuse_half_character(const std::string& where) {
  throw FormatError(where + " holds " + detail::kHalfCharacterProblem);
}

/// Checks the characters of the texts that are read: prompt and completion, or roles and contents of `messages`.
void check_characters(const nlohmann::json& record, const std::string& messages) {
  for (const auto* key : {"prompt", "completion"}) {
    if (const auto found = record.find(key); found != record.end() && detail::holds_half_character(*found))
      refuse_half_character("'" + std::string(key) + "'");
  }
  const auto list = record.find(messages);
  if (list == record.end() || !list->is_array()) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto& message = (*list)[i];
    for (const auto* key : {"role", "content"}) {
      if (message.is_object() && message.contains(key) && detail::holds_half_character(message[key]))
        refuse_half_character("the " + std::string(key) + " of message " + std::to_string(i + 1));
    }
  }
}

nlohmann::json parse_record(const std::string& sample, const std::string& messages) {
  try {
    return parse_object(sample);
  } catch (const nlohmann::json::exception& error) {
    if (const auto plain = detail::as_plain_json(sample); plain && nlohmann::json::accept(*plain)) {
      auto record = parse_object(*plain);
      check_characters(record, messages);
      return record;
    }
    const std::string what = error.what();
    const auto at = what.find("column ");
    throw FormatError("is no JSON, " + (at == std::string::npos ? what : what.substr(at)) +
                      "; JSON Lines has one whole object on every line");
  }
}

/// The first id is never a target.
bool has_target(const std::vector<std::uint8_t>& mask) {
  return std::find(mask.begin() + (mask.empty() ? 0 : 1), mask.end(), std::uint8_t{1}) != mask.end();
}

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, ConversationRules rules, EncodeOptions options)
    : tokenizer_(tokenizer), conversations_(tokenizer, std::move(rules)), options_(std::move(options)) {}

MaskedIds DocumentEncoder::encode_record(const std::string& sample, DataForm form) const {
  const auto record = parse_record(sample, options_.messages_field);
  return form == DataForm::messages ? conversations_.encode_messages(record, options_.messages_field)
                                    : conversations_.encode_pair(record);
}

EncodedSample DocumentEncoder::encode(const std::string& sample, DataForm form, const StopTest& stop) const {
  EncodedSample out;
  const bool masked = form != DataForm::text && options_.train_on == TrainOn::answers;
  auto& [ids, mask] = out.masked;
  if (form == DataForm::text) {
    ids = tokenizer_.encode_document(sample, stop);
  } else {
    out.masked = encode_record(sample, form);
    if (!masked) mask.clear();
  }
  const auto most = static_cast<std::size_t>(options_.max_length);
  if (most > 0 && ids.size() > most) {
    out.cut = static_cast<std::int64_t>(ids.size() - most);
    ids.resize(most);
    mask.resize(std::min(mask.size(), most));
  }
  if (masked) out.counts = has_target(mask);
  return out;
}

}  // namespace fsdp
