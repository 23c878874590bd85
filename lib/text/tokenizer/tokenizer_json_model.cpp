#include "lib/text/tokenizer/tokenizer_json_model.hpp"

#include <algorithm>
#include <set>

#include "lib/text/tokenizer/added_vocabulary.hpp"

namespace fsdp::detail {
namespace {

constexpr std::size_t kMaxGap = 1 << 16;

std::vector<std::string> read_pieces(const JsonValue& vocab, std::size_t num_added) {
  const auto& json = vocab.object();
  const std::size_t limit = json.size() + num_added + kMaxGap;
  std::vector<std::string> pieces;
  pieces.reserve(json.size());
  for (const auto& [piece, id] : json.items()) {
    const JsonValue value(id, vocab.where() + ": '" + piece + "'");
    const std::int64_t number = value.integer();
    if (number < 0 || number >= static_cast<std::int64_t>(limit)) {
      value.fail("has id " + std::to_string(number) + ", but there are " + std::to_string(json.size()) + " pieces");
    }
    if (piece.empty()) value.fail("is empty");
    const auto index = static_cast<std::size_t>(number);
    if (index >= pieces.size()) pieces.resize(index + 1);
    if (!pieces[index].empty()) value.fail("has id " + std::to_string(number) + " as '" + pieces[index] + "' has");
    pieces[index] = piece;
  }
  return pieces;
}

std::pair<std::string, std::string> read_merge(const JsonValue& merge) {
  if (merge.is_string()) {
    const std::string& text = merge.string();
    const std::size_t space = text.find(' ');
    if (space == 0 || space == text.npos || space + 1 == text.size() || space != text.rfind(' ')) {
      merge.fail("is '" + text.substr(0, 60) + "', expected two pieces with one space between them");
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }
  const auto pair = merge.elements();
  if (pair.size() != 2) merge.fail("has " + std::to_string(pair.size()) + " pieces, expected two");
  return {pair[0].string(), pair[1].string()};
}

void read_template(const JsonValue& processor, DocumentMarks& marks) {
  const JsonValue specials = processor.get("special_tokens");
  bool before = true;
  for (const JsonValue& step : processor.at("single").elements()) {
    if (!step.get("Sequence").is_null()) {
      if (!before) step.fail("repeats the text, which is not supported");
      before = false;
      continue;
    }
    const std::string& name = step.at("SpecialToken").at("id").string();
    for (const JsonValue& id : specials.at(name).at("ids").elements()) {
      const std::int64_t number = id.integer();
      if (number < 0 || number > INT32_MAX) id.fail("is no token id");
      (before ? marks.before : marks.after).push_back(static_cast<std::int32_t>(number));
    }
  }
  if (before) processor.at("single").fail("leaves out the text");
}

}  // namespace

const std::string& type_of(const JsonValue& value) { return value.at("type").string(); }

void refuse_type(const JsonValue& value, const std::string& supported) {
  value.fail("type " + type_of(value) + " is not supported, expected " + supported);
}

std::vector<JsonValue> steps_of(const JsonValue& value, std::string_view list) {
  if (value.is_null()) return {};
  if (type_of(value) != "Sequence") return {value};
  return value.at(list).elements();
}

JsonModel read_model(const JsonValue& model, std::size_t num_added) {
  // Files of old versions do not name the type; only BPE has merges.
  const auto type = model.optional_string("type");
  if (type ? *type != "BPE" : model.get("merges").is_null()) {
    model.fail("type " + type.value_or("(none)") + " is not supported, expected BPE");
  }
  for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.optional_string(option).value_or("").empty()) model.get(option).fail("is not supported");
  }
  const JsonValue dropout = model.get("dropout");
  if (!dropout.is_null() && dropout.json() != 0.0) dropout.fail("is not supported");
  JsonModel read;
  read.byte_fallback = model.boolean("byte_fallback", false);
  read.ignore_merges = model.boolean("ignore_merges", false);
  read.pieces = read_pieces(model.at("vocab"), num_added);
  const auto merges = model.at("merges").elements();
  read.merges.reserve(merges.size());
  for (const JsonValue& merge : merges) read.merges.push_back(read_merge(merge));
  return read;
}

std::vector<AddedToken> read_added_tokens(const JsonValue& list) {
  std::vector<AddedToken> tokens;
  std::set<std::int64_t> ids;
  if (list.is_null()) return tokens;
  for (const JsonValue& value : list.elements()) {
    AddedToken token = read_added_token(value);
    const std::int64_t id = value.at("id").integer();
    if (id < 0 || id > INT32_MAX) value.fail("has id " + std::to_string(id));
    if (!ids.insert(id).second) value.fail("has an id that another added token has");
    token.id = static_cast<std::int32_t>(id);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<AddedToken> added_tokens_of(const JsonModel& model, const std::vector<AddedToken>& of_file,
                                        const std::string& where, const TokenizerConfig& config) {
  const PieceIds ids(model.pieces);
  const auto find = [&](const std::string& name) {
    const std::int32_t id = ids.find(name);
    return id == PieceIds::kNoId ? std::nullopt : std::optional(id);
  };
  const auto is_piece = [](const std::string& piece) { return !piece.empty(); };
  const auto count = std::count_if(model.pieces.begin(), model.pieces.end(), is_piece);
  return all_added_tokens({where, count, find}, of_file, config);
}

DocumentMarks read_post_processor(const JsonValue& post_processor, std::int64_t vocab_size) {
  DocumentMarks marks;
  bool has_template = false;
  for (const JsonValue& step : steps_of(post_processor, "processors")) {
    if (type_of(step) == "ByteLevel") continue;  // only moves offsets
    if (type_of(step) != "TemplateProcessing" || has_template)
      refuse_type(step, "ByteLevel and one TemplateProcessing");
    has_template = true;
    read_template(step, marks);
  }
  for (const auto* ids : {&marks.before, &marks.after}) {
    for (const std::int32_t id : *ids) {
      if (id >= vocab_size) post_processor.fail("adds id " + std::to_string(id) + ", which is not in the vocabulary");
    }
  }
  return marks;
}

std::optional<std::int32_t> find_mark(const std::optional<std::string>& name,
                                      const std::vector<std::string_view>& usual_names,
                                      const std::vector<AddedToken>& tokens) {
  const auto find = [&](std::string_view text) -> std::optional<std::int32_t> {
    const auto found =
        std::find_if(tokens.begin(), tokens.end(), [&](const auto& token) { return token.text == text; });
    return found == tokens.end() ? std::nullopt : std::optional(found->id);
  };
  if (name) return find(*name);
  for (const std::string_view usual : usual_names) {
    if (const auto id = find(usual)) return id;
  }
  return {};
}

}  // namespace fsdp::detail
