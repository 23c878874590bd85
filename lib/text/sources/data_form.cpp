#include "lib/text/sources/data_form.hpp"

#include <algorithm>

#include "lib/base/error.hpp"
#include "lib/text/sources/documents.hpp"
#include "lib/text/sources/parquet_documents.hpp"

namespace fsdp {
namespace {

DataForm form_of(const std::vector<std::string>& keys, const std::filesystem::path& file) {
  const auto has = [&](std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  const bool messages = has("messages"), pair = has("prompt") && has("completion"), text = has("text");
  if (messages + pair + text > 1) {
    throw UsageError(file.string() + ": has " + (messages ? "'messages'" : "'prompt' and 'completion'") + " and " +
                     (text ? "'text'" : "'prompt' and 'completion'") +
                     "; say which of them to read: text, prompt-completion or messages (--form; in fsdp-finetune and "
                     "fsdp-eval --data-form)");
  }
  return messages ? DataForm::messages : pair ? DataForm::prompt_completion : DataForm::text;
}

}  // namespace

DataForm find_data_form(const std::filesystem::path& file, const DataSelection& selection) {
  const auto kind = data_file_kind(file);
  const bool has_records = kind == DataFileKind::json_lines || kind == DataFileKind::parquet;
  if (selection.form == DataForm::automatic) {
    if (!selection.field.empty() || !has_records) return DataForm::text;
    return form_of(kind == DataFileKind::parquet ? parquet_columns(file) : detail::first_json_keys(file), file);
  }
  if (selection.form == DataForm::text || has_records) return selection.form;
  throw UsageError(file.string() + ": is " + name_of(kind) + ", which holds texts; " +
                   std::string(name_of(kDataFormNames, selection.form)) + " are read from JSON Lines and Parquet");
}

}  // namespace fsdp
