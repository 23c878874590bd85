#include "lib/templates/chat/preference.hpp"

#include <algorithm>
#include <string>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

const Json& answer_of(const Json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end()) throw FormatError("has no '" + std::string(key) + "'");
  if (found->is_string() || found->is_array()) return *found;
  throw FormatError("'" + std::string(key) + "' holds " + (found->is_null() ? "null" : found->type_name()) +
                    ", expected a string or a list of messages");
}

/// The part that two texts begin with, in whole characters.
std::size_t shared_bytes(const std::string& one, const std::string& other) {
  const auto shorter = std::min(one.size(), other.size());
  if (shorter == 0) return 0;
  auto at = static_cast<std::size_t>(
      std::mismatch(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(shorter), other.begin()).first -
      one.begin());
  const bool part = at < shorter;
  if (!part) --at;  // the last character belongs to the answers
  const auto is_inside = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; };
  while (at > 0 && (is_inside(one[at]) || is_inside(other[at]))) --at;
  if (part && at > 0 && one[at - 1] == ' ') --at;
  return at;
}

std::size_t shared_messages(const Json& one, const Json& other) {
  const auto shorter = std::min(one.size(), other.size());
  std::size_t at = 0;
  while (at < shorter && one[at] == other[at]) ++at;
  return at == shorter && at > 0 ? at - 1 : at;
}

Json list_of(const Json& messages, std::size_t begin, std::size_t end) {
  auto part = Json::array();
  for (auto i = begin; i < end; ++i) part.push_back(messages[i]);
  return part;
}

}  // namespace

bool is_message_preference(const nlohmann::ordered_json& record) {
  return record.is_object() && record.contains("chosen") && record["chosen"].is_array();
}

Preference read_preference(const nlohmann::ordered_json& record) {
  const auto &chosen = answer_of(record, "chosen"), &rejected = answer_of(record, "rejected");
  if (chosen.is_array() != rejected.is_array())
    throw FormatError("'chosen' and 'rejected' are a string and a list of messages: both are to be of one kind");
  auto rest = record;
  for (const auto* key : {"chosen", "rejected", "prompt"}) rest.erase(key);
  Preference preference{rest, rest};
  const auto prompt = record.find("prompt");
  const bool is_given = prompt != record.end() && (chosen.is_array() ? prompt->is_array() : prompt->is_string());
  const auto add = [&](Json& sample, const Json& answer, std::size_t begin) {
    if (is_given) {
      sample["prompt"] = *prompt;
      sample["completion"] = answer;
    } else if (answer.is_array()) {
      sample["prompt"] = list_of(answer, 0, begin);
      sample["completion"] = list_of(answer, begin, answer.size());
    } else {
      const auto& text = answer.get_ref<const std::string&>();
      sample["prompt"] = text.substr(0, begin);
      sample["completion"] = text.substr(begin);
    }
  };
  const auto begin = is_given ? 0
                     : chosen.is_array()
                         ? shared_messages(chosen, rejected)
                         : shared_bytes(chosen.get_ref<const std::string&>(), rejected.get_ref<const std::string&>());
  if (!is_given && chosen.is_array() && begin == 0 && prompt != record.end() && prompt->is_string())
    throw FormatError("'prompt' holds a string, and the answers are lists of messages: give it as a list, too");
  if (!is_given && chosen.is_array() && begin == 0)
    throw FormatError("has no 'prompt', and 'chosen' and 'rejected' begin with no message that both have");
  add(preference.chosen, chosen, begin);
  add(preference.rejected, rejected, begin);
  return preference;
}

}  // namespace fsdp
