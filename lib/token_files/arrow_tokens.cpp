// Token ids in Parquet files and Arrow streams: a column `input_ids`, else `tokens`, of lists of whole numbers, read by
// row group, or in mapped memory. Lists of one fixed size are rows, others documents, which may be empty; a row that is
// null is an empty document. `labels` of -100 beside the ids are no targets. Of a file of documents the place of each
// is in memory, 8 bytes.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/formats/arrow/parquet_plugin.hpp"
#include "lib/token_files/token_file_formats.hpp"

namespace fsdp {
namespace {

std::unique_ptr<detail::IdColumn> open_column(const std::filesystem::path& file, const std::string& field,
                                              std::string& failure) {
  return std::unique_ptr<detail::IdColumn>(
      detail::find_parquet_plugin(file).open_ids(file.c_str(), field.c_str(), &failure));
}

class ArrowTokens final : public TokenFile {
 public:
  ArrowTokens(const std::filesystem::path& file, std::unique_ptr<detail::IdColumn> column)
      : TokenFile(file), column_(std::move(column)) {
    for (std::int64_t block = 0; block < column_->num_blocks(); ++block) {
      first_rows_.push_back(rows_);
      rows_ += column_->block_rows(block);
      if (row_length() == 0) take_lengths(block);
    }
    if (row_length() == 1) fail("holds rows of one id, and 2 are needed to predict one");
  }

  std::int64_t num_records() const override { return rows_; }
  std::int64_t row_length() const override { return column_->row_length(); }
  std::int64_t length(std::int64_t record) const override {
    if (row_length() > 0) return row_length();
    return ends_[to_index(record)] - (record > 0 ? ends_[to_index(record - 1)] : 0);
  }

  void read(std::int64_t record, std::span<std::int32_t> out) const override {
    check_part(record, out.size());
    call(record, [&](std::int64_t block, std::int64_t row, std::string* failure) {
      return column_->read(block, row, out.data(), std::ssize(out), failure);
    });
  }

  bool has_loss_mask() const override { return column_->has_labels(); }
  void read_loss_mask(std::int64_t record, std::span<std::uint8_t> out) const override {
    if (!has_loss_mask()) return TokenFile::read_loss_mask(record, out);
    check_part(record, out.size());
    call(record, [&](std::int64_t block, std::int64_t row, std::string* failure) {
      return column_->read_mask(block, row, out.data(), std::ssize(out), failure);
    });
  }

  std::vector<std::string> remarks() const override {
    std::vector<std::string> found;
    for (const auto& name : parquet_columns(file())) {
      if (std::ranges::find(detail::kTextColumns, name) == detail::kTextColumns.end()) continue;
      found.push_back("has ids, which are read, beside the column '" + name +
                      "', which the name of that column asks for");
    }
    constexpr std::int64_t kMuch_bytes = std::int64_t{256} << 20;
    const auto bytes = column_->largest_block_bytes();
    if (bytes > kMuch_bytes) {
      found.push_back(
          fmt::format("has row groups of up to {} of ids, and each is decoded whole for one row of it: write smaller "
                      "ones, or Arrow (datasets' save_to_disk)",
                      format_bytes(static_cast<double>(bytes))));
    }
    return found;
  }

  std::vector<std::string> unread() const override {
    std::vector<std::string> found;
    if (has_loss_mask()) return found;  // labels replace them
    for (const auto& name : parquet_columns(file())) {
      constexpr std::array<std::string_view, 6> kMasks{"attention_mask", "completion_mask", "assistant_masks",
                                                       "loss_mask",      "labels",          "position_ids"};
      if (std::ranges::find(kMasks, name) != kMasks.end()) found.push_back(name);
    }
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw FormatError(file().string() + ": " + detail::worded(problem));
  }

  void take_lengths(std::int64_t block) {
    std::vector<std::int64_t> lengths;
    std::string failure;
    if (!column_->lengths(block, &lengths, &failure)) fail(failure);
    if (std::ssize(lengths) != column_->block_rows(block)) fail("has other rows than it says, it is damaged");
    for (const auto length : lengths) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + length);
  }

  template <class Call>
  void call(std::int64_t record, const Call& read_from) const {
    const auto block = std::ranges::upper_bound(first_rows_, record) - first_rows_.begin() - 1;
    std::string failure;
    check_unchanged();  // before as well: mapped memory beyond the end of a file ends the process
    if (!read_from(block, record - first_rows_[to_index(block)], &failure)) fail(failure);
    check_unchanged();
  }

  std::unique_ptr<detail::IdColumn> column_;
  std::int64_t rows_ = 0;
  std::vector<std::int64_t> first_rows_;  ///< of each block
  std::vector<std::int64_t> ends_;        ///< of the ids of each document, counted over the file; none for rows
};

}  // namespace

bool is_arrow_tokens(const std::filesystem::path& file, std::string_view head) {
  const bool is_known = head.starts_with("PAR1") || head.starts_with("\xff\xff\xff\xff");
  return is_known && !file.empty() && detail::has_parquet_plugin() && holds_ids(file, {});
}

bool holds_ids(const std::filesystem::path& file, const std::string& field) {
  std::string failure;
  const auto column = open_column(file, field, failure);
  // A file that cannot be opened is refused with the reason, not taken for texts.
  return column != nullptr || !failure.empty();
}

std::unique_ptr<TokenFile> open_arrow_tokens(const std::filesystem::path& file, const TokenFileOptions& options) {
  std::string failure;
  auto column = open_column(file, options.field, failure);
  if (column != nullptr) return std::make_unique<ArrowTokens>(file, std::move(column));
  throw FormatError(file.string() + ": " +
                    (failure.empty() ? "has no column 'input_ids' or 'tokens' of ids" : detail::worded(failure)));
}

}  // namespace fsdp
