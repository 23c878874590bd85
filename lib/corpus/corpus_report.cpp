#include "lib/corpus/corpus_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <string_view>

#include "lib/base/types/error.hpp"
#include "lib/token_files/token_file.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kExactLengths = 65536;
constexpr int kKeptBits = 6;  // of longer lengths, after the first

std::int64_t rounded_length(std::int64_t length) {
  if (length < kExactLengths) return length;
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(length)));
  const auto unused = bits - 1 - kKeptBits;
  return length >> unused << unused;
}

/// Begin of the number in "FILE: line 12" or "FILE: element 12 at byte 3456"; the end of another text, such as the path
/// of a plain text.
std::size_t number_in(const std::string& place) {
  for (const std::string_view word : {": line ", ": row ", ": element "}) {
    if (const auto at = place.rfind(word); at != std::string::npos) return at + word.size();
  }
  return place.size();
}

std::uint64_t number_at(const std::string& text, std::size_t begin) {
  std::uint64_t number = 0;
  for (auto i = begin; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i)
    number = 10 * number + static_cast<std::uint64_t>(text[i] - '0');
  return number;
}

}  // namespace

// --- LengthCounts

void LengthCounts::add(std::int64_t length) {
  shortest_ = documents_ == 0 ? length : std::min(shortest_, length);
  ++counts_[rounded_length(length)];
  ++documents_;
  ids_ += length;
  longest_ = std::max(longest_, length);
}

std::int64_t LengthCounts::quantile(double share) const {
  const auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(documents_)));
  std::int64_t sum = 0;
  for (const auto& [length, count] : counts_) {
    sum += count;
    if (sum >= wanted) return length;
  }
  return longest_;
}

std::vector<LengthCounts::Bar> LengthCounts::bars() const {
  std::vector<Bar> bars;
  const auto last = std::bit_width(static_cast<std::uint64_t>(longest_));
  for (int bits = 0; bits <= static_cast<int>(last); ++bits) {
    const auto from = bits == 0 ? 0 : std::int64_t{1} << (bits - 1);
    bars.push_back({from, bits == 0 ? 0 : 2 * from - 1, 0});
  }
  for (const auto& [length, count] : counts_)
    bars[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)))].documents += count;
  return bars;
}

// --- CorpusReport

CorpusReport::CorpusReport(const std::filesystem::path& beside, bool drops) : drops_(drops), equal_(beside) {}

void CorpusReport::compare_with(const std::filesystem::path& token_file, const std::string& tokenizer) {
  TokenFileOptions options;
  options.documents = true;
  const auto tokens = open_token_file(token_file, options);
  if (!tokens->has_documents())
    throw FormatError(token_file.string() +
                      ": holds rows, and documents are to be compared with: encode its texts without joining them");
  if (tokens->num_shared_rows() > 0)
    throw FormatError(
        token_file.string() +
        ": its documents were cut to share rows, and whole ones are to be compared with: encode its texts "
        "without packing them");
  if (const auto made_by = tokens->notes().tokenizer_description; !made_by.empty() && made_by != tokenizer)
    throw FormatError(
        fmt::format("{}: its ids are of {}, and these are of {}: encode its texts with the same tokenizer",
                    token_file.string(), made_by, tokenizer));
  auto& hashes = hashes_of_against_.emplace_back();
  std::vector<std::int32_t> ids;
  for (std::int64_t record = 0; record < tokens->num_records(); ++record) {
    ids.resize(static_cast<std::size_t>(tokens->length(record)));
    tokens->read(record, ids);
    if (!ids.empty()) hashes.insert(hash_of_ids(ids));
  }
  against_.push_back({token_file.string(), tokens->num_records(), 0, {}});
}

std::uint32_t CorpusReport::source_of(const std::string& place) {
  const auto prefix = place.substr(0, number_in(place));
  if (!sources_.empty() && prefix == last_prefix_) return last_source_;
  last_prefix_ = prefix;
  const auto [found, is_new] = by_prefix_.try_emplace(prefix, static_cast<std::uint32_t>(sources_.size()));
  if (is_new) {
    prefixes_.push_back(prefix);
    sources_.push_back({.file = prefix.ends_with(' ') ? prefix.substr(0, prefix.rfind(": ")) : prefix});
  }
  return last_source_ = found->second;
}

std::string CorpusReport::words(const DocumentPlace& place) const {
  const auto& prefix = prefixes_[place.source];
  return prefix.ends_with(' ') ? prefix + std::to_string(place.number) : prefix;
}

bool CorpusReport::add(const std::string& place, std::span<const std::int32_t> ids) {
  const DocumentPlace where{source_of(place), number_at(place, number_in(place))};
  auto& source = sources_[where.source];
  const auto length = static_cast<std::int64_t>(ids.size());
  lengths_.add(length);
  ++source.documents;
  source.ids += length;
  if (ids.empty()) {
    ++empty_;
    ++source.empty;
    return true;
  }
  const auto hash = hash_of_ids(ids);
  equal_.add(hash, where);
  bool is_dropped = drops_ && !seen_.insert(hash);
  for (std::size_t i = 0; i < against_.size(); ++i) {
    if (!hashes_of_against_[i].contains(hash)) continue;
    ++against_[i].found;
    if (against_[i].examples.size() < kMostExamples) against_[i].examples.push_back({words(where), against_[i].file});
    is_dropped = is_dropped || drops_;
  }
  dropped_ += is_dropped ? 1 : 0;
  return !is_dropped;
}

void CorpusReport::take_group(std::span<const DocumentPlace> places) {
  ++copies_.groups;
  copies_.largest = std::max(copies_.largest, std::ssize(places));
  std::set<std::uint32_t> files{places.front().source};
  for (const auto& place : places.subspan(1)) {
    const bool is_first_of_file = files.insert(place.source).second;
    ++(is_first_of_file ? copies_.between : copies_.inside);
    sources_[place.source].copies += is_first_of_file ? 0 : 1;
    if (copies_.examples.size() < kMostExamples) copies_.examples.push_back({words(place), words(places.front())});
  }
}

void CorpusReport::finish() {
  equal_.for_groups([&](std::span<const DocumentPlace> places) { take_group(places); });
}

}  // namespace fsdp
