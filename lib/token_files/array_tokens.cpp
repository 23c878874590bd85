#include "lib/token_files/array_tokens.hpp"

#include <algorithm>
#include <vector>

#include "lib/base/types/error.hpp"

namespace fsdp {

StreamRows stream_rows(std::int64_t ids, std::int64_t inputs) {
  if (ids <= inputs) return {1, ids, 0};
  const auto count = (ids - 1) / inputs;
  return {count, inputs + 1, ids - count * inputs - 1};
}

void require_pair(const std::filesystem::path& file, std::int64_t ids) {
  if (ids > 1) return;
  throw FormatError(file.string() + ": holds " + (ids == 0 ? "no ids" : "one id") +
                    ", and 2 are needed to predict one");
}

std::unique_ptr<TokenFile> ArrayTokens::stream(IdArray ids, std::int64_t inputs) {
  const auto count = ids.count();
  require_pair(ids.file().path(), count);
  TokenFileNotes notes;
  if (inputs == 0)
    return std::unique_ptr<TokenFile>(new ArrayTokens(std::move(ids), {1, count, count, 1}, true, std::move(notes)));
  const auto rows = stream_rows(count, inputs);
  notes.overlaps = true;
  notes.left_out = rows.left_out;
  return std::unique_ptr<TokenFile>(
      new ArrayTokens(std::move(ids), {rows.count, rows.length, inputs, 1}, false, std::move(notes)));
}

std::unique_ptr<TokenFile> ArrayTokens::rows(IdArray ids, const Rows& rows) {
  return std::unique_ptr<TokenFile>(new ArrayTokens(std::move(ids), rows, false, {}));
}

ArrayTokens::ArrayTokens(IdArray ids, const Rows& rows, bool is_document, TokenFileNotes notes)
    : TokenFile(ids.file().path()),
      ids_(std::move(ids)),
      rows_(rows),
      is_document_(is_document),
      notes_(std::move(notes)) {}

void ArrayTokens::read(std::int64_t record, std::span<std::int32_t> out) const {
  check_part(record, out.size());
  ids_.read(record * rows_.row_step, out, rows_.id_step);
  check_unchanged();
}

void ArrayTokens::read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const {
  if (rows_.id_step != 1 || rows_.row_step > rows_.length) return TokenFile::read_run(first, count, out);
  read_rows_of_stream(count, rows_.row_step, out,
                      [&](std::span<std::int32_t> ids) { ids_.read(first * rows_.row_step, ids); });
  check_unchanged();
}

void read_rows_of_stream(std::int64_t count, std::int64_t step, std::span<std::int32_t> out,
                         const std::function<void(std::span<std::int32_t>)>& read) {
  const auto length = static_cast<std::int64_t>(out.size()) / count;
  if (step == length || count == 1) return read(out);
  std::vector<std::int32_t> ids(static_cast<std::size_t>((count - 1) * step + length));
  read(ids);
  for (std::int64_t row = 0; row < count; ++row)
    std::copy_n(ids.begin() + row * step, length, out.begin() + row * length);
}

}  // namespace fsdp
