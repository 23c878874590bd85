#include "lib/training/data/data_loader.hpp"

#include <ATen/ops/empty.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {

namespace {

constexpr std::int32_t kIgnored = -1;

/// Rows of a file of rows, from `first` on.
class RowsOfFile final : public TokenFile {
 public:
  RowsOfFile(std::unique_ptr<TokenFile> file, std::int64_t first, std::int64_t count)
      : TokenFile(file->file()), file_(std::move(file)), first_(first), count_(count) {}

  std::int64_t num_records() const override { return count_; }
  std::int64_t row_length() const override { return file_->row_length(); }
  std::int64_t length(std::int64_t record) const override { return file_->length(first_ + record); }
  void read(std::int64_t record, std::span<std::int32_t> out) const override { file_->read(first_ + record, out); }
  bool has_loss_mask() const override { return file_->has_loss_mask(); }
  void read_loss_mask(std::int64_t record, std::span<std::uint8_t> out) const override {
    file_->read_loss_mask(first_ + record, out);
  }
  TokenFileNotes notes() const override { return file_->notes(); }
  std::vector<std::string> unread() const override { return file_->unread(); }
  std::vector<std::string> remarks() const override { return file_->remarks(); }

 private:
  void read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const override {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), first_ + first);
    file_->read_rows(rows, out);
  }

  std::unique_ptr<TokenFile> file_;
  std::int64_t first_, count_;
};

/// Writes the targets of a sequence: its ids from the second one on, or -1 where an id does not count. \return the
/// number of targets
std::int64_t set_targets(std::span<const std::int32_t> ids, std::span<const std::uint8_t> counts,
                         std::int32_t* targets) {
  std::int64_t number = 0;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    targets[i - 1] = counts[i] != 0 ? ids[i] : kIgnored;
    number += counts[i];
  }
  return number;
}

/// Tokens of the head that `with_targets` targets need: some more where they would be another number in each step,
/// since a GPU's allocator reuses blocks of few sizes.
std::int64_t head_tokens_for(std::int64_t with_targets, std::int64_t tokens) {
  constexpr std::int64_t kSizes = 16;
  const auto step = std::max<std::int64_t>(1, tokens / kSizes);
  return std::max<std::int64_t>(1, (with_targets + step - 1) / step) * step;
}

/// Sets MicroBatch::head_tokens_M where the head has enough of its work saved. Up to two thirds of the tokens, their
/// copies need no more memory than the norm of all tokens and its gradient do. \param batch  on the host
void choose_head_tokens(MicroBatch& batch) {
  const auto tokens = batch.rows * batch.length;
  if (tokens == 0 || !batch.targets_N.is_cpu()) return;  // those of a simulated run have no values
  const std::span<const std::int32_t> targets(batch.targets_N.data_ptr<std::int32_t>(),
                                              static_cast<std::size_t>(tokens));
  const auto with_targets = std::ranges::count_if(targets, [](std::int32_t id) { return id >= 0; });
  const auto chosen = head_tokens_for(with_targets, tokens);
  if (3 * chosen > 2 * tokens) return;
  batch.head_tokens_M = at::empty({chosen}, at::kLong);
  auto* next = batch.head_tokens_M.data_ptr<std::int64_t>();
  auto others = chosen - with_targets;
  for (std::int64_t token = 0; token < tokens; ++token) {
    if (targets[static_cast<std::size_t>(token)] >= 0 || others-- > 0) *next++ = token;
  }
}

}  // namespace

std::int64_t SequenceLimit::row_inputs() const {
  return seq_len > 0 ? seq_len : std::min(TokenLoader::kDefaultDocumentIds, positions);
}

TokenLoader::TokenLoader(const std::filesystem::path& file, const SequenceLimit& limit, std::int64_t vocab_size,
                         std::int64_t most, TokenFileOptions how)
    : most_(most > 0 ? most : std::numeric_limits<std::int64_t>::max()),
      positions_(limit.positions),
      vocab_size_(vocab_size) {
  how.stream_inputs = limit.row_inputs();
  tokens_ = open_token_file(file, how);
  const auto notes = tokens_->notes();
  overlaps_ = notes.overlaps;
  end_left_out_ = notes.left_out;
  if (!has_documents()) {
    pairs_ = std::min(limit.seq_len == 0 ? limit.positions : limit.seq_len, tokens_->row_length() - 1);
    return;
  }
  if (notes.has_preferences) sides_ = 2;
  is_judged_ = notes.judged;
  if (num_records() == 0) throw FormatError(file.string() + ": holds no documents");
  if (limit.seq_len == 1)
    throw RequestError("sequences of 1 token: a document needs 2 ids to predict one of them", Remedy::of_seq_len);
  const auto most_ids = limit.row_inputs();
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < num_records(); ++i) longest = std::max(longest, num_ids_of(i));
  if (longest < 2) throw FormatError(file.string() + ": no document has 2 ids, so there is nothing to predict");
  pairs_ = std::min(most_ids, longest) - 1;
  row_tokens_ = sides_ * most_ids;
  if (has_preferences() || is_judged_) check_samples();
  if (has_shared_rows()) check_rows(limit);
}

void TokenLoader::check_samples() {
  const auto refuse = [&](const std::string& problem) {
    throw FormatError(tokens_->file().string() + ": says that its documents are " +
                      (is_judged_ ? "judged answers" : "sides of preferences") + ", and " + problem + ": encode the " +
                      (is_judged_ ? "answers" : "preferences") + " again");
  };
  if (is_judged_ && !has_loss_mask()) refuse("has no loss_mask");
  if (num_records() % sides_ != 0) refuse(fmt::format("has {} documents", num_records()));
  for (std::int64_t i = 0; i < num_records(); ++i) {
    if (num_ids_of(i) < 2) refuse(fmt::format("document {} has fewer than 2 ids", i));
  }
  std::vector<std::uint8_t> counts;
  std::vector<std::int64_t> kept;
  const auto is_whole = [&](std::int64_t document) {
    return num_ids_of(document) <= pairs_ + 1 || has_target(document, counts);
  };
  for (std::int64_t i = 0; i < num_records() / sides_; ++i) {
    if (is_whole(sides_ * i) && is_whole(sides_ * i + sides_ - 1)) kept.push_back(i);
  }
  if (kept.empty())
    throw FormatError(tokens_->file().string() + (is_judged_ ? ": no answer has" : ": no preference has") + " targets" +
                          (is_judged_ ? "" : " on both sides") + " within the sequence length",
                      Remedy::of_seq_len);
  if (std::ssize(kept) < num_records() / sides_) kept_ = std::move(kept);
  if (is_judged_) find_partners();
}

void TokenLoader::find_partners() {
  const auto samples = num_samples();
  wanted_.resize(static_cast<std::size_t>(samples));
  const auto read_prompt = [&](std::int64_t number) {
    const auto document = sample(number);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens_->length(document)));
    std::vector<std::uint8_t> counts(ids.size());
    tokens_->read(document, ids);
    tokens_->read_loss_mask(document, counts);
    if (ids.back() > 1)
      throw FormatError(fmt::format("{}: document {} ends with {}, and a judgement is 1 or 0: encode the answers again",
                                    tokens_->file().string(), document, ids.back()));
    wanted_[static_cast<std::size_t>(number)] = ids.back() == 1;
    ids.resize(static_cast<std::size_t>(std::ranges::find(counts, std::uint8_t{1}) - counts.begin()));
    return ids;
  };
  // The last token of one prompt may have become the beginning of an answer.
  const auto are_same = [](const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
    const auto shared = std::ranges::mismatch(a, b).in1 - a.begin();
    return shared + 1 >= std::ssize(a) && shared + 1 >= std::ssize(b) && (shared > 0 || a == b);
  };
  std::vector<bool> begins_another(static_cast<std::size_t>(samples));  ///< another prompt than that of the one before
  auto before = read_prompt(samples - 1);
  for (std::int64_t i = 0; i < samples; ++i) {
    auto prompt = read_prompt(i);
    begins_another[static_cast<std::size_t>(i)] = !are_same(before, prompt);
    before = std::move(prompt);
  }
  // Walks through the samples twice, so that the first ones get the last ones' answers.
  std::vector<std::int64_t> partners(static_cast<std::size_t>(samples));
  std::int64_t other = -1;
  for (std::int64_t step = 0; step < 2 * samples; ++step) {
    const auto i = step % samples;
    if (begins_another[static_cast<std::size_t>(i)]) other = (i > 0 ? i : samples) - 1;
    if (other >= 0) element(partners, i) = sample(other);
  }
  if (other >= 0) partners_ = std::move(partners);
}

/// Checks the limits for rows that documents share in the file: such rows are never cut.
void TokenLoader::check_rows(const SequenceLimit& limit) {
  pairs_ = row_tokens_ = 0;
  for (std::int64_t row = 0; row < num_rows(); ++row) {
    std::int64_t tokens = 0;
    for (auto i = tokens_->shared_row_begin(row); i < tokens_->shared_row_begin(row + 1); ++i) {
      const auto pairs = std::max<std::int64_t>(0, tokens_->length(i) - 1);
      pairs_ = std::max(pairs_, pairs);
      tokens += pairs;
    }
    if (tokens == 0)
      throw FormatError(tokens_->file().string() + ": row " + std::to_string(row) + " has nothing to predict");
    row_tokens_ = std::max(row_tokens_, tokens);
  }
  const auto refuse = [&](const std::string& problem) {
    throw RequestError(tokens_->file().string() + ": " + problem + ", and its rows are not cut",
                       {Remedy::pack_again, std::to_string(limit.seq_len == 0 ? limit.positions : limit.seq_len)});
  };
  if (limit.seq_len > 0 && row_tokens_ > limit.seq_len)
    refuse("has packed rows of " + std::to_string(row_tokens_) + " tokens, more than the " +
           std::to_string(limit.seq_len) + " that were asked for");
  if (pairs_ > limit.positions)
    refuse("has a document of " + std::to_string(pairs_ + 1) + " ids, the model has " +
           std::to_string(limit.positions) + " positions");
}

std::vector<std::int64_t> TokenLoader::records_of(std::int64_t row) const {
  if (is_packed()) return documents_of(row);
  if (!has_preferences()) return {sample(row)};
  return {2 * sample(row), 2 * sample(row) + 1};
}

std::vector<std::int64_t> TokenLoader::documents_of(std::int64_t row, std::int64_t epoch) const {
  if (packing_ && has_preferences()) {
    std::vector<std::int64_t> sides;
    for (const auto number : packing_->documents(row, epoch))
      sides.insert(sides.end(), {2 * sample(number), 2 * sample(number) + 1});
    return sides;
  }
  if (packing_) return packing_->documents(row, epoch);
  std::vector<std::int64_t> documents;
  for (auto i = tokens_->shared_row_begin(row); i < tokens_->shared_row_begin(row + 1); ++i) {
    if (pairs_of(i) > 0) documents.push_back(i);
  }
  return documents;
}

void TokenLoader::pack(const RowPacking::Order& order, std::int64_t records) {
  if (!has_documents())
    throw RequestError(
        "packing puts documents together, and " + tokens_->file().string() + " holds rows that are packed already",
        Remedy::packed_already);
  if (has_shared_rows()) return;
  std::vector<std::int64_t> sizes;
  const auto count = records > 0 ? std::min(records, num_records()) : num_records();
  sizes.reserve(count / sides_);
  if (is_judged_)
    throw RequestError("judged answers have a row each and are not packed, and " + tokens_->file().string() +
                       " holds such answers");
  if (has_preferences()) find_shared_tokens();
  for (std::int64_t i = 0; has_preferences() && i < num_samples() && sample(i) < count / 2; ++i)
    sizes.push_back(own_pairs_of(2 * sample(i)) + own_pairs_of(2 * sample(i) + 1));
  for (std::int64_t i = 0; !has_preferences() && i < count; ++i) sizes.push_back(pairs_of(i));
  packing_.emplace(sizes, row_tokens_, order);
}

void TokenLoader::find_shared_tokens() {
  shared_.reserve(static_cast<std::size_t>(num_records() / 2));
  std::vector<std::int32_t> chosen, rejected;
  std::vector<std::uint8_t> counts;
  for (std::int64_t i = 0; i < num_records(); i += 2) {
    chosen.resize(static_cast<std::size_t>(pairs_of(i)) + 1);
    rejected.resize(static_cast<std::size_t>(pairs_of(i + 1)) + 1);
    counts.resize(rejected.size());
    tokens_->read(i, chosen);
    tokens_->read(i + 1, rejected);
    tokens_->read_loss_mask(i + 1, counts);
    // The last inputs of both sides have targets, and are in no token that is shared.
    const auto most = std::min(chosen.size(), rejected.size()) - 1;
    std::size_t shared = 0;
    while (shared < most && chosen[shared] == rejected[shared] && counts[shared + 1] == 0) ++shared;
    shared_.push_back(static_cast<std::int32_t>(std::min(shared, most - 1)));
  }
}

void TokenLoader::keep_part(const Split& split) {
  const auto rows = num_records();
  const auto held_out = std::clamp<std::int64_t>(std::llround(split.share * static_cast<double>(rows)), 1, rows);
  const auto others = rows - held_out;
  if (others == 0)
    throw FormatError(tokens_->file().string() + ": the text fills " + std::to_string(rows) +
                          (rows == 1 ? " row" : " rows") + ", all of them held out",
                      Remedy::smaller_split);
  if (!split.held_out || rows < tokens_->num_records()) end_left_out_ = 0;
  tokens_ =
      std::make_unique<RowsOfFile>(std::move(tokens_), split.held_out ? others : 0, split.held_out ? held_out : others);
  most_ = tokens_->num_records();
}

std::int64_t TokenLoader::num_records() const {
  if (has_shared_rows()) return tokens_->shared_row_begin(num_rows());
  return most_ < tokens_->num_records() / sides_ ? most_ * sides_ : tokens_->num_records();
}
std::int64_t TokenLoader::num_rows() const {
  if (packing_) return packing_->num_rows();
  if (has_shared_rows()) return std::min(tokens_->num_shared_rows(), most_);
  return num_samples();
}

std::int64_t TokenLoader::num_ids(std::int64_t records) const {
  std::int64_t ids = records * tokens_->row_length();  // of rows, of which a large file has very many
  for (std::int64_t i = 0; has_documents() && i < records; ++i) ids += num_ids_of(i);
  if (overlaps_ && records > 0) ids -= records - 1;
  return ids + (records == tokens_->num_records() ? end_left_out_ : 0);
}

std::int64_t TokenLoader::pairs_of(std::int64_t record) const {
  return std::max<std::int64_t>(0, std::min(num_ids_of(record), pairs_ + 1) - 1);
}

std::int64_t TokenLoader::shared_tokens_of(std::int64_t record) const {
  return shared_.empty() || record % 2 == 0 ? 0 : element(shared_, record / 2);
}

std::int64_t TokenLoader::shared_tokens() const {
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < num_records(); ++i) tokens += shared_tokens_of(i);
  return tokens;
}

double TokenLoader::fill() const {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < num_records(); ++i) pairs += own_pairs_of(i);
  return static_cast<double>(pairs) / static_cast<double>(num_rows() * row_tokens_);
}

DocumentLengths TokenLoader::lengths_in(std::int64_t number) const {
  if (!is_packed()) return {has_documents() ? std::max<std::int64_t>(1, pairs_of(number % num_rows())) : pairs_};
  DocumentLengths lengths;
  for (const auto document : documents_of(number % num_rows(), number / num_rows()))
    lengths.emplace_back(own_pairs_of(document), shared_tokens_of(document));
  return lengths;
}

std::int64_t TokenLoader::ids_left_out(std::int64_t records) const {
  const auto beyond_of = [this](std::int64_t length) { return std::max<std::int64_t>(0, length - pairs_ - 1); };
  std::int64_t beyond = records == tokens_->num_records() ? end_left_out_ : 0;
  if (!has_documents()) return beyond + records * beyond_of(tokens_->row_length());
  for (std::int64_t i = 0; i < records; ++i) beyond += beyond_of(num_ids_of(i));
  return beyond;
}

double TokenLoader::attended_length() const {
  if (!is_packed()) return static_cast<double>(tokens_per_row());
  DocumentLengths documents;
  for (std::int64_t i = 0; i < num_records(); ++i) documents.emplace_back(own_pairs_of(i), shared_tokens_of(i));
  return fsdp::attended_length({documents});
}

bool TokenLoader::has_target(std::int64_t record, std::vector<std::uint8_t>& counts) const {
  const auto pairs = pairs_of(record);
  if (pairs < 1 || !has_loss_mask()) return pairs > 0;
  counts.resize(static_cast<std::size_t>(pairs) + 1);
  tokens_->read_loss_mask(record, counts);
  return std::find(counts.begin() + 1, counts.end(), std::uint8_t{1}) != counts.end();
}

void TokenLoader::require_targets(std::int64_t records) const {
  std::vector<std::uint8_t> counts;
  for (std::int64_t i = 0; i < records; ++i) {
    if (has_target(i, counts)) return;
  }
  throw FormatError(
      tokens_->file().string() + ": not one id is a target, so there is no loss: " +
          (has_loss_mask() ? "loss_mask marks none that a sequence predicts (its first id is predicted by nothing)"
                           : "a sequence needs 2 ids"),
      has_loss_mask() ? Remedy::of_left_out_ids : Remedy::none);
}

std::int64_t TokenLoader::documents_without_targets(std::int64_t records) const {
  if (!has_documents() || !has_loss_mask()) return 0;
  std::int64_t found = 0;
  std::vector<std::uint8_t> counts;
  for (std::int64_t i = 0; i < records; ++i) {
    if (num_ids_of(i) <= pairs_ + 1) continue;
    found += has_target(i, counts) ? 0 : 1;
  }
  return found;
}

void TokenLoader::fill_rows(const std::vector<std::int64_t>& rows, MicroBatch& batch) const {
  batch.length = pairs_;
  const auto width = tokens_->row_length();
  std::vector<std::int32_t> ids(rows.size() * static_cast<std::size_t>(width));
  tokens_->read_rows(rows, ids);
  check_token_ids(ids, vocab_size_, tokens_->file(), rows);
  batch.ids_N = at::empty({batch.rows * pairs_}, at::kInt);
  batch.targets_N = at::empty({batch.rows * pairs_}, at::kInt);
  std::vector<std::uint8_t> counts(width);
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    const std::span<const std::int32_t> row(ids.data() + r * width, static_cast<std::size_t>(pairs_) + 1);
    tokens_->read_loss_mask(element(rows, r), counts);
    std::copy_n(row.begin(), pairs_, batch.ids_N.data_ptr<std::int32_t>() + r * pairs_);
    batch.num_targets += set_targets(row, counts, batch.targets_N.data_ptr<std::int32_t>() + r * pairs_);
  }
}

std::int64_t TokenLoader::padded(std::int64_t length) const {
  const auto rounded = (length + step_ - 1) / step_ * step_;
  return std::max(length, std::min(rounded, positions_));
}

void DataLoader::make_padding(MicroBatch& batch) {
  constexpr std::int32_t kPad = 0;
  // at::full would start a team of threads for each reading thread.
  const auto filled = [&](std::int32_t value) {
    auto ids_N = at::empty({batch.rows * batch.length}, at::kInt);
    std::fill_n(ids_N.data_ptr<std::int32_t>(), ids_N.numel(), value);
    return ids_N;
  };
  batch.ids_N = filled(kPad);
  batch.targets_N = filled(kIgnored);
}

TokenLoader::DocumentIds TokenLoader::read_document(std::int64_t document) const {
  DocumentIds read{std::vector<std::int32_t>(std::min(num_ids_of(document), pairs_ + 1)), {}};
  tokens_->read(document, read.ids);
  check_token_ids(read.ids, vocab_size_, tokens_->file(), {&document, 1});
  read.counts.resize(read.ids.size());
  tokens_->read_loss_mask(document, read.counts);
  return read;
}

std::int64_t TokenLoader::number_of(std::int64_t document) const {
  return kept_.empty() ? document : std::ranges::lower_bound(kept_, document) - kept_.begin();
}

TokenLoader::DocumentIds TokenLoader::mismatched_ids(std::int64_t document) const {
  auto prompt = read_document(document);
  const auto answer = read_document(element(partners_, number_of(document)));
  const auto begin_of = [](const DocumentIds& text) {
    return std::ranges::find(text.counts, std::uint8_t{1}) - text.counts.begin();
  };
  const auto prompt_end = begin_of(prompt), answer_begin = begin_of(answer);
  prompt.ids.resize(static_cast<std::size_t>(prompt_end));
  prompt.counts.resize(static_cast<std::size_t>(prompt_end));
  prompt.ids.insert(prompt.ids.end(), answer.ids.begin() + answer_begin, answer.ids.end());
  prompt.counts.insert(prompt.counts.end(), answer.counts.begin() + answer_begin, answer.counts.end());
  if (std::ssize(prompt.ids) > pairs_ + 1) {
    prompt.ids.resize(static_cast<std::size_t>(pairs_) + 1);
    prompt.counts.resize(static_cast<std::size_t>(pairs_) + 1);
  }
  return prompt;
}

void TokenLoader::put_document(const DocumentIds& document, std::int64_t begin, MicroBatch& batch, std::int64_t token) {
  const auto& [ids, counts] = document;
  if (ids.size() < 2) return;
  const auto own = std::span(ids).subspan(static_cast<std::size_t>(begin));
  std::copy(own.begin(), own.end() - 1, batch.ids_N.data_ptr<std::int32_t>() + token);
  batch.num_targets += set_targets(own, std::span(counts).subspan(static_cast<std::size_t>(begin)),
                                   batch.targets_N.data_ptr<std::int32_t>() + token);
}

void TokenLoader::fill_padded(const std::vector<DocumentIds>& documents, MicroBatch& batch) const {
  batch.length = 1;  // a document of fewer than 2 ids has no pair, but still takes a row
  for (const auto& document : documents) batch.length = std::max(batch.length, std::ssize(document.ids) - 1);
  batch.length = padded(batch.length);
  make_padding(batch);
  for (std::int64_t r = 0; r < batch.rows; ++r) put_document(element(documents, r), 0, batch, r * batch.length);
}

void TokenLoader::fill_documents(const std::vector<std::int64_t>& rows, MicroBatch& batch) const {
  std::vector<DocumentIds> documents;
  for (const auto row : rows) documents.push_back(read_document(row));
  fill_padded(documents, batch);
}

at::Tensor TokenLoader::references_of(const std::vector<std::int64_t>& records, std::int64_t first) const {
  auto of_records_S = at::empty({std::ssize(records)}, at::kDouble);
  for (std::size_t i = 0; i < records.size(); ++i)
    of_records_S.data_ptr<double>()[i] = reference_.at(static_cast<std::size_t>(first + records[i]));
  return of_records_S;
}

void TokenLoader::add_judgements(const std::vector<std::int64_t>& documents, MicroBatch& batch) const {
  batch.desirable_S = at::empty({std::ssize(documents)}, at::kDouble);
  std::vector<DocumentIds> mismatched;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    batch.desirable_S.data_ptr<double>()[i] = wanted_[static_cast<std::size_t>(number_of(documents[i]))] ? 1 : 0;
    if (has_mismatched()) mismatched.push_back(mismatched_ids(documents[i]));
  }
  if (!has_mismatched()) return;
  batch.mismatched = std::make_shared<MicroBatch>();
  batch.mismatched->rows = batch.rows;
  fill_padded(mismatched, *batch.mismatched);
  if (!reference_.empty()) batch.mismatched->reference_S = references_of(documents, num_records());
}

std::vector<std::int64_t> TokenLoader::fill_packed(const std::vector<std::int64_t>& rows, MicroBatch& batch) const {
  std::vector<std::int64_t> documents;
  std::vector<DocumentLengths> lengths;
  batch.length = 1;
  for (const auto row : rows) {
    std::int64_t in_row = 0;
    lengths.emplace_back();
    for (const auto document : documents_of(row % num_rows(), row / num_rows())) {
      documents.push_back(document);
      lengths.back().emplace_back(own_pairs_of(document), shared_tokens_of(document));
      in_row += lengths.back().back().tokens;
    }
    batch.length = std::max(batch.length, in_row);
  }
  if (step_ > 1) batch.length = tokens_per_row();  // one size, so that a GPU's allocator reuses its blocks
  make_padding(batch);
  if (batch.rows == 0) return documents;
  batch.packing = make_packing(lengths, batch.length);
  for (std::size_t i = 0; i < documents.size(); ++i)
    put_document(read_document(documents[i]), shared_tokens_of(documents[i]), batch, batch.packing->documents[i].first);
  return documents;
}

void DataLoader::set_sample_keys(MicroBatch& batch, const std::vector<std::uint64_t>& sample_keys) {
  if (sample_keys.empty()) return;
  batch.sample_keys = at::empty({batch.rows}, at::kLong);
  const auto rows_of_sample = static_cast<std::size_t>(batch.rows) / sample_keys.size();
  for (std::size_t r = 0; r < sample_keys.size() * rows_of_sample; ++r) {
    batch.sample_keys.data_ptr<std::int64_t>()[r] = static_cast<std::int64_t>(sample_keys[r / rows_of_sample]);
  }
}

MicroBatch TokenLoader::read(const std::vector<std::int64_t>& rows,
                             const std::vector<std::uint64_t>& sample_keys) const {
  MicroBatch batch;
  batch.rows = std::ssize(rows);
  std::vector<std::int64_t> records;
  if (is_packed()) {
    records = fill_packed(rows, batch);
  } else {
    for (const auto row : rows) {
      for (const auto record : records_of(row % num_rows())) records.push_back(record);
    }
    batch.rows = std::ssize(records);
    has_documents() ? fill_documents(records, batch) : fill_rows(records, batch);
  }
  if (!reference_.empty()) batch.reference_S = references_of(records, 0);
  if (is_judged_) add_judgements(records, batch);
  set_sample_keys(batch, sample_keys);
  return batch;
}

MicroBatch RandomLoader::read(const std::vector<std::int64_t>& rows,
                              const std::vector<std::uint64_t>& sample_keys) const {
  MicroBatch batch;
  const std::int64_t sides = has_preferences_ && documents_.empty() ? 2 : 1;
  batch.rows = std::ssize(rows) * sides;
  batch.length = pairs_;
  batch.num_targets = batch.rows * pairs_;
  batch.ids_N = at::empty({batch.num_targets}, at::kInt);
  batch.targets_N = at::empty({batch.num_targets}, at::kInt);
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    for (std::int64_t t = 0; t < pairs_; ++t) {
      const auto id = static_cast<std::int32_t>(sample_key(static_cast<std::uint64_t>(element(rows, r / sides)), t) %
                                                static_cast<std::uint64_t>(vocab_size_));
      batch.ids_N.data_ptr<std::int32_t>()[r * pairs_ + t] = id;
      batch.targets_N.data_ptr<std::int32_t>()[r * pairs_ + (t + pairs_ - 1) % pairs_] = id;
    }
  }
  if (!documents_.empty() && batch.rows > 0)
    batch.packing = make_packing(documents_of_rows(documents_, rows.size()), pairs_);
  if (has_preferences_ || is_judged_) {
    const auto sequences = batch.packing != nullptr ? std::ssize(batch.packing->documents) : batch.rows;
    batch.reference_S = at::empty({sequences}, at::kDouble);
    std::fill_n(batch.reference_S.data_ptr<double>(), sequences, 0.0);
  }
  if (is_judged_) {
    batch.mismatched = std::make_shared<MicroBatch>(batch);
    batch.desirable_S = batch.reference_S;  // none is wanted
  }
  set_sample_keys(batch, sample_keys);
  return batch;
}

void send_to(const Ops& ops, MicroBatch& batch) {
  choose_head_tokens(batch);
  if (batch.head_tokens_M.defined()) batch.head_tokens_M = ops.to_device(batch.head_tokens_M);
  batch.ids_N = ops.to_device(batch.ids_N);
  batch.targets_N = ops.to_device(batch.targets_N);
  if (batch.weights_N.defined()) batch.weights_N = ops.to_device(batch.weights_N);
  if (batch.groups_N.defined()) batch.groups_N = ops.to_device(batch.groups_N);
  if (batch.reference_S.defined()) batch.reference_S = ops.to_device(batch.reference_S);
  if (batch.targets_S.defined()) batch.targets_S = ops.to_device(batch.targets_S);
  if (batch.desirable_S.defined()) batch.desirable_S = ops.to_device(batch.desirable_S);
  if (batch.mismatched != nullptr) send_to(ops, *batch.mismatched);
  if (batch.packing == nullptr) return;
  auto packing = std::make_shared<Packing>(*batch.packing);
  packing->positions_N = ops.to_device(packing->positions_N);
  packing->starts = ops.to_device(packing->starts);
  if (packing->whole != nullptr) {
    auto whole = std::make_shared<Packing>(*packing->whole);
    whole->starts = ops.to_device(whole->starts);
    packing->whole = std::move(whole);
  }
  batch.packing = std::move(packing);
}

std::uint64_t sample_key(std::uint64_t seed, std::int64_t position) {
  return splitmix64_output(seed * kSplitmix64Step + static_cast<std::uint64_t>(position) + 0x632be59bd9b4e019u);
}

}  // namespace fsdp
