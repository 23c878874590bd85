#include "lib/tokenizer/byte_level_bpe.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/tokenizer/bpe_merges.hpp"
#include "lib/tokenizer/byte_alphabet.hpp"
#include "lib/tokenizer/gpt2_merges.hpp"
#include "lib/tokenizer/pre_tokenizer.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

/// The pieces of a vocabulary as the bytes they stand for, by id.
class Vocabulary {
 public:
  explicit Vocabulary(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
    ids_.reserve(pieces_.size());
    for (std::size_t id = 0; id < pieces_.size(); ++id) ids_.emplace(pieces_[id], static_cast<std::int32_t>(id));
  }
  std::int64_t size() const { return static_cast<std::int64_t>(pieces_.size()); }
  std::optional<std::int32_t> find(const std::string& bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::string& bytes(std::int32_t id) const {
    if (id < 0 || id >= size()) {
      throw UsageError("token id " + std::to_string(id) + " is not in the tokenizer's vocabulary of " +
                       std::to_string(size()) + ": was the model trained with another tokenizer?");
    }
    return pieces_[static_cast<std::size_t>(id)];
  }

 private:
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, std::int32_t> ids_;
};

class ByteLevelBpe final : public Tokenizer {
 public:
  ByteLevelBpe(Vocabulary vocabulary, BpeMerges merges, const std::string& name)
      : vocabulary_(std::move(vocabulary)),
        merges_(std::move(merges)),
        end_(vocabulary_.find(std::string(kEndOfText))) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto id = vocabulary_.find(std::string(1, static_cast<char>(byte)));
      if (!id) {
        throw FormatError(name + ": has no piece for byte " + std::to_string(byte) +
                          ", expected a byte-level vocabulary with all 256");
      }
      byte_ids_[static_cast<std::size_t>(byte)] = *id;
    }
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size() / 3);
    std::vector<std::int32_t> word_ids;
    for (const std::string_view word : words_.split(text)) {
      word_ids.clear();
      for (const char byte : word) word_ids.push_back(byte_ids_[static_cast<std::uint8_t>(byte)]);
      merges_.apply(word_ids, ids);
    }
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += vocabulary_.bytes(id);
    return text;
  }
  std::string decode_one(std::int32_t id) const override { return vocabulary_.bytes(id); }
  std::int64_t vocab_size() const override { return vocabulary_.size(); }
  std::optional<std::int32_t> bos_id() const override { return end_; }
  std::optional<std::int32_t> eos_id() const override { return end_; }

 private:
  Vocabulary vocabulary_;
  BpeMerges merges_;
  std::optional<std::int32_t> end_;
  std::array<std::int32_t, 256> byte_ids_{};
  Gpt2PreTokenizer words_;
};

/// One line of merges.txt as bytes.
struct MergeLine {
  std::string left;
  std::string right;
};

std::vector<MergeLine> parse_merges(std::string_view text, const std::string& name) {
  std::vector<MergeLine> merges;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == 0 || space == line.npos || space + 1 == line.size() || space != line.rfind(' ')) {
      throw FormatError(name + ": line " + std::to_string(number) + " is '" + std::string(line.substr(0, 60)) +
                        "', expected two pieces with one space between them");
    }
    merges.push_back({bytes_of_piece(line.substr(0, space)), bytes_of_piece(line.substr(space + 1))});
  }
  return merges;
}

BpeMerges merge_table(const std::vector<MergeLine>& lines, const Vocabulary& vocabulary, const std::string& name) {
  BpeMerges merges;
  merges.reserve(lines.size());
  for (const auto& [left, right] : lines) {
    const auto left_id = vocabulary.find(left);
    const auto right_id = vocabulary.find(right);
    const auto merged_id = vocabulary.find(left + right);
    if (!left_id || !right_id || !merged_id) {
      throw FormatError(name + ": merge of '" + left + "' and '" + right +
                        "' uses a piece that the vocabulary does not have; do the two files belong together?");
    }
    merges.add(*left_id, *right_id, *merged_id);
  }
  return merges;
}

std::vector<std::string> read_pieces(const std::filesystem::path& file) {
  const auto json = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (!json.is_object()) throw FormatError(file.string() + ": is no JSON object, expected {\"piece\": id, ...}");
  std::vector<std::string> pieces(json.size());
  std::vector<bool> seen(json.size(), false);
  for (const auto& [piece, id] : json.items()) {
    const auto value = id.is_number_integer() ? id.get<std::int64_t>() : -1;
    if (value < 0 || value >= static_cast<std::int64_t>(pieces.size()) || seen[static_cast<std::size_t>(value)]) {
      throw FormatError(file.string() + ": piece '" + piece + "' has id " + id.dump() + ", expected the ids 0 to " +
                        std::to_string(pieces.size() - 1) + ", each once");
    }
    seen[static_cast<std::size_t>(value)] = true;
    pieces[static_cast<std::size_t>(value)] = bytes_of_piece(piece);
  }
  return pieces;
}

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer() {
  // GPT-2's vocabulary follows from its merges: the bytes in the order of the alphabet, what each merge makes, the end.
  const std::string name = "built-in GPT-2 vocabulary";
  const auto lines = parse_merges(detail::gpt2_merges_text(), name);
  std::vector<std::string> pieces;
  pieces.reserve(lines.size() + 257);
  for (const std::uint8_t byte : byte_alphabet()) pieces.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : lines) pieces.push_back(left + right);
  pieces.emplace_back(kEndOfText);
  Vocabulary vocabulary(std::move(pieces));
  auto merges = merge_table(lines, vocabulary, name);
  return std::make_unique<ByteLevelBpe>(std::move(vocabulary), std::move(merges), name);
}

std::unique_ptr<Tokenizer> make_byte_level_bpe(const std::filesystem::path& vocab_json,
                                               const std::filesystem::path& merges_txt) {
  Vocabulary vocabulary(read_pieces(vocab_json));
  auto merges =
      merge_table(parse_merges(read_text_file(merges_txt), merges_txt.string()), vocabulary, merges_txt.string());
  return std::make_unique<ByteLevelBpe>(std::move(vocabulary), std::move(merges), vocab_json.string());
}

}  // namespace fsdp
