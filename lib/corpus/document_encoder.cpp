#include "lib/corpus/document_encoder.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/json_text.hpp"

namespace fsdp {
namespace {

nlohmann::json parse_record(const std::string& sample) {
  try {
    auto record = parse_json(sample, "the object");
    if (!record.is_object()) throw FormatError("holds no object {...}");
    return record;
  } catch (const nlohmann::json::exception& error) {
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
  const auto record = parse_record(sample);
  return form == DataForm::messages ? conversations_.encode_messages(record, options_.messages_field)
                                    : conversations_.encode_pair(record);
}

EncodedSample DocumentEncoder::encode(const std::string& sample, DataForm form) const {
  EncodedSample out;
  const bool masked = form != DataForm::text && options_.train_on == TrainOn::answers;
  auto& [ids, mask] = out.masked;
  if (form == DataForm::text) {
    ids = tokenizer_.encode_document(sample);
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
