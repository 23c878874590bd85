#include "lib/documents/documents.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/python_json.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/documents/data_files.hpp"
#include "lib/documents/file_kind.hpp"
#include "lib/documents/parquet_documents.hpp"
#include "lib/documents/unpacked_file.hpp"
#include "lib/formats/arrow/parquet_plugin.hpp"
#include "lib/templates/chat/messages.hpp"
#include "lib/templates/chat/preference.hpp"

namespace fsdp {
namespace {

/// The forms of which a sample has the keys.
struct Forms {
  explicit Forms(const std::vector<std::string>& all) : keys(all) {}
  bool has(std::string_view key) const { return std::find(keys.begin(), keys.end(), key) != keys.end(); }

  const std::vector<std::string>& keys;
  bool messages = has("messages") || has(kShareGptField) || (has(kAlpacaKeys[0]) && has(kAlpacaKeys[1]));
  bool pair = has("prompt") && has("completion");
  bool text = has("text");
  /// Samples that have another form, too, are read as preferences only where that is asked for.
  bool preference = has("chosen") && has("rejected") && !messages && !pair && !text;

  int count() const { return messages + pair + preference + text; }
  /// The one that is there; text where none is.
  DataForm form() const {
    return messages     ? DataForm::messages
           : pair       ? DataForm::prompt_completion
           : preference ? DataForm::preference
                        : DataForm::text;
  }
};

DataForm form_of(const std::vector<std::string>& keys, const std::filesystem::path& file) {
  const Forms forms(keys);
  if (forms.count() > 1) {
    std::vector<std::string> found;
    if (forms.messages)
      found.emplace_back(forms.has("messages")       ? "'messages'"
                         : forms.has(kShareGptField) ? "'conversations'"
                                                     : "'instruction' and 'output'");
    if (forms.pair) found.emplace_back("'prompt' and 'completion'");
    if (forms.text) found.emplace_back("'text'");
    throw RequestError(fmt::format("{}: has {}; say which of them to read: text, prompt-completion or "
                                   "messages",
                                   file.string(), fmt::join(found, " and ")),
                       Remedy::of_form);
  }
  return forms.form();
}

/// The columns of Parquet that hold messages, in any layout.
std::vector<std::string> message_columns(const std::filesystem::path& file, const DataSelection& selection) {
  const auto columns = parquet_columns(file);
  const auto has = [&](std::string_view name) {
    return std::find(columns.begin(), columns.end(), name) != columns.end();
  };
  const auto field = messages_field(selection);
  if (!selection.field.empty() || has(field)) return {field, "?system"};
  if (has(kShareGptField)) return {kShareGptField, "?system"};
  if (!has(kAlpacaKeys[0]) || !has(kAlpacaKeys[1])) return {field};
  std::vector<std::string> fields;
  for (const auto* key : kAlpacaKeys) fields.push_back((fields.size() < 2 ? "" : "?") + std::string(key));
  return fields;
}

std::string first_bytes(const std::filesystem::path& file) {
  const auto handle = File::open_read(file);
  std::string bytes(std::min<std::uint64_t>(detail::kHead_bytes, handle.size_bytes()), '\0');
  handle.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// Returns the first bytes of the content of a compressed file.
std::string first_unpacked_bytes(const std::filesystem::path& file) {
  detail::UnpackedFile stream(file);
  std::string bytes;
  for (std::string block; bytes.size() < detail::kHead_bytes && stream.read(block);) bytes += block;
  bytes.resize(std::min<std::size_t>(bytes.size(), detail::kHead_bytes));
  return bytes;
}

/// True if the first line of the file, or the first element of a list, is a JSON object with a key, whatever the file's
/// name is.
bool holds_json_samples(const std::filesystem::path& file, std::string_view head) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  auto brace = head.find_first_not_of(" \t\r\n");
  if (brace != head.npos && head[brace] == '[') brace = head.find_first_not_of(" \t\r\n", brace + 1);
  if (brace == head.npos || head[brace] != '{') return false;
  const auto quote = head.find_first_not_of(" \t\r\n", brace + 1);
  if (quote == head.npos || head[quote] != '"') return false;
  return !detail::first_json_keys(file).empty();
}

/// True if the first sample of prompts and completions, or of preferences, has messages.
bool begins_with_messages(const std::filesystem::path& file, const DataSelection& selection) {
  const auto records = open_records(file, selection);
  std::string text;
  if (!records->next(text)) return false;
  const auto record = parse_data_or_discard(PythonJson(text).plain_text(), records->where());
  if (selection.form == DataForm::label) {
    const auto field = selection.field.empty() ? "text" : selection.field;
    return record.is_object() && !record.contains(field) && record.contains("messages");
  }
  return selection.form == DataForm::preference ? is_message_preference(record) : is_message_pair(record);
}

/// A column of texts of an Arrow stream.
class ArrowTexts : public Documents {
 public:
  ArrowTexts(const std::filesystem::path& file, const std::string& field)
      : field_(field.empty() ? usual_field(file) : field), rows_(open_parquet_records(file, {field_})) {}

  bool next(std::string& text) override {
    if (!rows_->next(row_)) return false;
    text.clear();
    const auto row = nlohmann::json::parse(row_, nullptr, false);
    if (row.is_discarded()) fail("is no UTF-8");
    const auto& value = row[field_];
    if (value.is_null()) return true;
    if (value.is_string()) {
      text = value.get<std::string>();
      return true;
    }
    if (!value.is_array()) fail("holds something else than strings or lists of strings");
    for (const auto& part : value) {
      if (!part.is_string()) fail("holds a list of something else than strings");
      text += (&part == &value.front() ? "" : " ") + part.get<std::string>();
    }
    return true;
  }
  std::string where() const override { return rows_->where(); }
  std::int64_t bytes_read() const override { return rows_->bytes_read(); }
  std::vector<std::string> unread() const override { return rows_->unread(); }

 private:
  static std::string usual_field(const std::filesystem::path& file) {
    const auto columns = parquet_columns(file);
    const bool games = std::find(columns.begin(), columns.end(), "text") == columns.end() &&
                       std::find(columns.begin(), columns.end(), "Moves") != columns.end();
    return games ? "Moves" : "text";
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw FormatError(where() + ": column '" + field_ + "' " + problem);
  }

  std::string field_;
  std::unique_ptr<Documents> rows_;
  std::string row_;
};

class PlainText : public Documents {
 public:
  PlainText(const std::filesystem::path& file, std::uint64_t most_bytes) : file_(file), most_bytes_(most_bytes) {}

  bool next(std::string& text) override {
    if (done_) return false;
    done_ = true;
    text.clear();
    for (std::string block; file_.read(block);) {
      text += block;
      if (text.size() > most_bytes_) {
        throw FormatError(where() + ": is one text of more than " + format_bytes(static_cast<double>(most_bytes_)) +
                          ", half of the memory here: cut it into files, or into lines of JSON (X.jsonl)");
      }
    }
    size_ = file_.bytes_read();
    if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
    return !text.empty();
  }
  std::string where() const override { return file_.path().string(); }
  std::int64_t bytes_read() const override { return size_; }

 private:
  detail::UnpackedFile file_;
  std::uint64_t most_bytes_;
  bool done_ = false;
  std::int64_t size_ = 0;
};

}  // namespace

std::optional<DataForm> form_of_keys(const std::vector<std::string>& keys) {
  const Forms forms(keys);
  return forms.count() == 1 ? std::optional(forms.form()) : std::nullopt;
}

const char* detail::name_with_article(DataForm form) {
  return form == DataForm::messages            ? "a conversation"
         : form == DataForm::prompt_completion ? "a prompt with a completion"
         : form == DataForm::preference        ? "a preference"
         : form == DataForm::label             ? "a text with a label"
                                               : "a text";
}

DataForm find_data_form(const std::filesystem::path& file, const DataSelection& selection) {
  const auto kind = data_file_kind(file);
  const bool has_columns = kind == DataFileKind::parquet || kind == DataFileKind::arrow;
  const bool has_records = kind == DataFileKind::json_lines || has_columns;
  if (selection.form == DataForm::automatic) {
    if (!selection.field.empty() || !has_records) return DataForm::text;
    return form_of(has_columns ? parquet_columns(file) : detail::first_json_keys(file), file);
  }
  if (selection.form == DataForm::text || has_records) return selection.form;
  throw RequestError(file.string() + ": is " + name_of(kind) + ", which holds texts; " +
                     detail::name_with_article(selection.form) + " is read from JSON Lines and Parquet");
}

DataFileKind data_file_kind(const std::filesystem::path& file) {
  using detail::NamedKind;
  auto head = first_bytes(file);
  if (head.starts_with("PAR1")) return DataFileKind::parquet;
  if (head.starts_with("\xff\xff\xff\xff")) return DataFileKind::arrow;
  if (head.starts_with("PARE")) {
    throw FormatError(file.string() + ": is encrypted Parquet, for which no key can be given: decrypt it first");
  }
  const auto named = detail::kind_by_name(file);
  if (detail::is_packed(head) && named != NamedKind::other) head = first_unpacked_bytes(file);
  detail::refuse_foreign_format(file, head);
  if (named == NamedKind::parquet) {
    throw FormatError(file.string() + ": is not a Parquet file (it does not begin with PAR1); was it copied whole?");
  }
  if (named == NamedKind::arrow)
    throw FormatError(file.string() + ": is no Arrow stream, as datasets.save_to_disk writes it; was it copied whole?");
  if (named == NamedKind::json_lines || named == NamedKind::json) return DataFileKind::json_lines;
  detail::refuse_binary(file, head);
  if (named == NamedKind::csv) return DataFileKind::csv;
  if (holds_json_samples(file, head)) {
    throw FormatError(file.string() +
                      ": would be read as plain text, and it begins with a JSON object: give it the suffix .jsonl "
                      "(ln -s will do), and each line, or each element of a list, is a document");
  }
  return DataFileKind::text;
}

const char* name_of(DataFileKind kind) {
  switch (kind) {
    case DataFileKind::json_lines:
      return "JSON Lines";
    case DataFileKind::csv:
      return "CSV";
    case DataFileKind::parquet:
      return "Parquet";
    case DataFileKind::arrow:
      return "Arrow";
    default:
      return "plain text";
  }
}

std::unique_ptr<Documents> detail::open_plain_text(const std::filesystem::path& file, std::uint64_t most_bytes) {
  return std::make_unique<PlainText>(file, most_bytes);
}

std::unique_ptr<Documents> open_documents(const DataPiece& piece, const std::string& field) {
  const auto& file = piece.file;
  switch (data_file_kind(file)) {
    case DataFileKind::json_lines:
      return detail::open_json_lines(piece, field.empty() ? "text" : field);
    case DataFileKind::csv:
      return detail::open_csv(file, field.empty() ? "text" : field,
                              detail::lower_suffix(detail::unpacked_name(file)) == ".tsv" ? '\t' : ',');
    case DataFileKind::parquet:
      return open_parquet(piece, field);
    case DataFileKind::arrow:
      return std::make_unique<ArrowTexts>(file, field);
    default: {
      const auto memory = static_cast<std::uint64_t>(machine_memory_bytes());
      return detail::open_plain_text(file, memory > 0 ? memory / 2 : std::numeric_limits<std::uint64_t>::max());
    }
  }
}

std::unique_ptr<Documents> open_records(const DataPiece& piece, const DataSelection& selection) {
  const auto& file = piece.file;
  if (data_file_kind(file) == DataFileKind::json_lines) return detail::open_json_records(piece);
  std::vector<std::string> fields;
  if (selection.form == DataForm::messages) {
    fields = message_columns(file, selection);
  } else if (selection.form == DataForm::preference) {
    fields = {"chosen", "rejected", "?prompt", "?system"};
  } else if (selection.form == DataForm::label) {
    fields = {"label", "?" + (selection.field.empty() ? std::string("text") : selection.field), "?messages"};
  } else {
    fields = {"prompt", "completion", "?system"};
    if (selection.judged) fields.emplace_back("label");
  }
  for (const auto* name : kUnsaidBeside) fields.push_back("!" + std::string(name));
  for (const auto* name : kLossBeside) fields.push_back("?" + std::string(name));
  fields.insert(fields.end(), {"?tools", "?chat_template_kwargs"});
  return open_parquet_records(piece, fields);
}

DocumentStream::DocumentStream(std::vector<DataPiece> pieces, DataSelection selection, std::int64_t max_documents)
    : pieces_(std::move(pieces)),
      selection_(std::move(selection)),
      documents_left_(max_documents > 0 ? max_documents : std::numeric_limits<std::int64_t>::max()) {
  for (const auto& piece : pieces_) {
    const auto& file = piece.file;
    forms_.push_back(find_data_form(file, selection_));  // all now, so that errors come at once
    needs_template_ =
        needs_template_ || forms_.back() == DataForm::messages ||
        (forms_.back() != DataForm::text && begins_with_messages(file, {forms_.back(), selection_.field}));
    file_bytes_.push_back(static_cast<std::int64_t>(std::filesystem::file_size(file)));
    bytes_total_ += file_bytes_.back();
  }
}

bool DocumentStream::next(std::string& text) {
  const auto note_unread = [&] {
    if (documents_ != nullptr) ignored_.add(pieces_[next_piece_ - 1].file.string(), documents_->unread());
  };
  if (documents_left_ == 0) {
    note_unread();
    return false;
  }
  while (documents_ == nullptr || !documents_->next(text)) {
    if (documents_ != nullptr) bytes_before_ += file_bytes_[next_piece_ - 1];
    note_unread();
    documents_.reset();
    if (next_piece_ == pieces_.size()) return false;
    const auto& piece = pieces_[next_piece_++];
    documents_ = form() == DataForm::text ? open_documents(piece, selection_.field)
                                          : open_records(piece, {form(), selection_.field, selection_.judged});
  }
  --documents_left_;
  return true;
}

bool DocumentStream::has(DataForm form) const { return std::find(forms_.begin(), forms_.end(), form) != forms_.end(); }

std::int64_t DocumentStream::bytes_read() const {
  return bytes_before_ + (documents_ != nullptr ? documents_->bytes_read() : 0);
}

}  // namespace fsdp
