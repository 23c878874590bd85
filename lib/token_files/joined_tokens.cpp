#include "lib/token_files/joined_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

class JoinedTokens final : public TokenFile {
 public:
  JoinedTokens(const std::filesystem::path& folder, std::vector<std::unique_ptr<TokenFile>> parts)
      : TokenFile(folder), parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      begins_.push_back(records_);
      records_ += part->num_records();
    }
  }

  std::int64_t num_records() const override { return records_; }
  std::int64_t row_length() const override { return parts_.front()->row_length(); }
  std::int64_t length(std::int64_t record) const override {
    const auto part = part_of(record);
    return parts_[part]->length(record - begins_[part]);
  }
  void read(std::int64_t record, std::span<std::int32_t> out) const override {
    check_part(record, out.size());
    const auto part = part_of(record);
    parts_[part]->read(record - begins_[part], out);
  }
  bool has_loss_mask() const override { return parts_.front()->has_loss_mask(); }
  void read_loss_mask(std::int64_t record, std::span<std::uint8_t> out) const override {
    const auto part = part_of(record);
    parts_[part]->read_loss_mask(record - begins_[part], out);
  }
  TokenFileNotes notes() const override {
    auto notes = parts_.front()->notes();
    notes.left_out = 0;
    for (const auto& part : parts_) notes.left_out += part->notes().left_out;
    return notes;
  }
  void check() const override {
    for (const auto& part : parts_) part->check();
  }
  std::vector<std::filesystem::path> files() const override {
    std::vector<std::filesystem::path> all;
    for (const auto& part : parts_) std::ranges::copy(part->files(), std::back_inserter(all));
    return all;
  }
  std::vector<std::string> unread() const override { return parts_.front()->unread(); }
  std::vector<std::string> remarks() const override {
    std::vector<std::string> all;
    for (const auto& part : parts_) {
      for (const auto& remark : part->remarks()) all.push_back(part->file().filename().string() + " " + remark);
    }
    if (all.size() > 1) {
      const auto others = all.size() - 1;
      all.resize(1);
      all.front() += fmt::format(" (and {} more about files of this folder)", others);
    }
    return all;
  }

 private:
  void read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const override {
    const auto length = out.size() / static_cast<std::size_t>(count);
    for (std::int64_t done = 0; done < count;) {
      const auto part = part_of(first + done);
      const auto begin = first + done - begins_[part];
      std::vector<std::int64_t> rows(
          static_cast<std::size_t>(std::min(count - done, parts_[part]->num_records() - begin)));
      std::iota(rows.begin(), rows.end(), begin);
      parts_[part]->read_rows(rows, out.subspan(static_cast<std::size_t>(done) * length, rows.size() * length));
      done += std::ssize(rows);
    }
  }
  std::size_t part_of(std::int64_t record) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(begins_, record) - begins_.begin() - 1);
  }

  std::vector<std::unique_ptr<TokenFile>> parts_;
  std::vector<std::int64_t> begins_;  ///< first record of each part
  std::int64_t records_ = 0;
};

}  // namespace

std::unique_ptr<TokenFile> join_token_files(const std::filesystem::path& folder,
                                            std::vector<std::unique_ptr<TokenFile>> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  const auto& first = *parts.front();
  for (const auto& part : parts) {
    const auto refuse = [&](const std::string& problem) {
      throw FormatError(fmt::format("{}: {}, and {} beside it {}", part->file().string(), problem,
                                    first.file().filename().string(), "differs: name the file that is meant"));
    };
    if (part->row_length() != first.row_length()) {
      refuse(part->has_documents() ? std::string("holds documents")
                                   : fmt::format("has rows of {} ids", part->row_length()));
    }
    if (part->has_loss_mask() != first.has_loss_mask())
      refuse(part->has_loss_mask() ? "has a loss mask" : "has no loss mask");
    if (part->num_shared_rows() > 0) refuse("holds packed documents, whose rows are of one file");
  }
  return std::make_unique<JoinedTokens>(folder, std::move(parts));
}

}  // namespace fsdp
