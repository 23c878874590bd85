#include "lib/tokenizer/byte_level_bpe.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/tokenizer/byte_alphabet.hpp"
#include "lib/tokenizer/byte_level_tokenizer.hpp"
#include "lib/tokenizer/gpt2_merges.hpp"
#include "lib/tokenizer/json_file.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

std::vector<MergePair> parse_merges(std::string_view text, const std::string& name) {
  std::vector<MergePair> merges;
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

std::vector<std::string> read_pieces(const std::filesystem::path& file) {
  const auto json = read_json_object(file);
  std::vector<std::string> pieces(json.size());
  std::vector<bool> seen(json.size(), false);
  for (const auto& [piece, id] : json.items()) {
    const auto value = id.is_number_integer() ? id.get<std::int64_t>() : -1;
    if (value < 0 || value >= static_cast<std::int64_t>(pieces.size()) || seen[static_cast<std::size_t>(value)]) {
      throw FormatError(file.string() + ": piece '" + piece + "' has id " + json_text(id) + ", expected the ids 0 to " +
                        std::to_string(pieces.size() - 1) + ", each once");
    }
    seen[static_cast<std::size_t>(value)] = true;
    pieces[static_cast<std::size_t>(value)] = bytes_of_piece(piece);
  }
  return pieces;
}

/// The parts that all vocabularies of GPT-2's kind share.
ByteLevelParts gpt2_parts(std::vector<std::string> pieces, const std::vector<MergePair>& merges,
                          const std::string& merges_name, const TokenizerConfig& config) {
  ByteLevelParts parts;
  const PieceIds ids(pieces);
  parts.merges = merge_table(merges, ids, merges_name);
  parts.added_tokens = config.added_tokens;
  parts.patterns.emplace_back(gpt2_pattern());
  const auto mark = [&](const std::optional<std::string>& name) {
    return find_token(name.value_or(std::string(kEndOfText)), config.added_tokens, ids);
  };
  parts.bos = mark(config.bos_token);
  parts.eos = mark(config.eos_token);
  if (config.add_bos.value_or(false) && parts.bos) parts.marks.before.push_back(*parts.bos);
  if (config.add_eos.value_or(false) && parts.eos) parts.marks.after.push_back(*parts.eos);
  parts.pieces = std::move(pieces);
  return parts;
}

}  // namespace

std::unique_ptr<Tokenizer> make_gpt2_tokenizer() {
  // GPT-2's vocabulary follows from its merges: the bytes in the order of the alphabet, what each merge makes, the end.
  const std::string name = "built-in GPT-2 vocabulary";
  const auto merges = parse_merges(detail::gpt2_merges_text(), name);
  std::vector<std::string> pieces;
  pieces.reserve(merges.size() + 257);
  for (const std::uint8_t byte : byte_alphabet()) pieces.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : merges) pieces.push_back(left + right);
  pieces.emplace_back(kEndOfText);
  auto parts = gpt2_parts(std::move(pieces), merges, name, {});
  parts.description = "GPT-2";
  parts.where = name;
  return std::make_unique<ByteLevelTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> make_byte_level_bpe(const std::filesystem::path& vocab_json,
                                               const std::filesystem::path& merges_txt, const TokenizerConfig& config) {
  auto pieces = read_pieces(vocab_json);
  const auto merges = parse_merges(read_text_file(merges_txt), merges_txt.string());
  auto parts = gpt2_parts(std::move(pieces), merges, merges_txt.string(), config);
  parts.description = "byte-level BPE of " + vocab_json.string();
  parts.where = vocab_json.string();
  return std::make_unique<ByteLevelTokenizer>(std::move(parts));
}

}  // namespace fsdp
