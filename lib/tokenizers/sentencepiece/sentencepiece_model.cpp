#include "lib/tokenizers/sentencepiece/sentencepiece_model.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

// A unit of the trie: label (bits 0 to 7, and bit 31 when the unit holds a value), whether a value is among the
// children (bit 8), offset of the children (bits 10 to 30, in units of 256 when bit 9 is set).
std::uint32_t label_of(std::uint32_t unit) { return unit & (1u << 31 | 0xFF); }
bool has_value(std::uint32_t unit) { return (unit >> 8 & 1) == 1; }
std::uint32_t value_of(std::uint32_t unit) { return unit & ((1u << 31) - 1); }
std::size_t offset_of(std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & 1u << 9) >> 6); }

std::uint32_t read_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

/// One field of a protocol buffer.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t varint = 0;  ///< wire type 0
  bool is_varint = false;
  bool is_bytes = false;
  std::string_view bytes;       ///< wire type 2
  std::string_view fixed;       ///< wire type 5: four bytes
  std::string_view serialized;  ///< the whole field, with its tag
};

/// Reads the fields of one message. A nested message is a field of bytes.
class Fields {
 public:
  /// \param whole  the file, in which `message` lies
  Fields(std::string_view message, std::string_view whole, const std::string& file)
      : rest_(message), whole_(whole), file_(file) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    field = {};
    const char* begin = rest_.data();
    const std::uint64_t key = varint();
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        field.varint = varint();
        field.is_varint = true;
        break;
      case 1:
        take(8);
        break;
      case 2:
        field.bytes = take(varint());
        field.is_bytes = true;
        break;
      case 5:
        field.fixed = take(4);
        break;
      default:
        fail("holds no SentencePiece model (wire type " + std::to_string(key & 7) + ")");
    }
    if (field.number == 0) fail("holds no SentencePiece model (field 0)");
    field.serialized = {begin, to_index(rest_.data() - begin)};
    return true;
  }

  [[noreturn]] void fail(const std::string& problem) const {
    throw FormatError(file_, static_cast<std::uint64_t>(rest_.data() - whole_.data()), problem);
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail("holds a number of more than 64 bits");
  }

  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) {
      fail("a field needs " + std::to_string(size) + " bytes, but " + std::to_string(rest_.size()) +
           " are left: the file is damaged or incomplete");
    }
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  std::string_view whole_;
  const std::string& file_;
};

struct Settings {
  std::uint64_t model_type = 1;
  bool space_as_suffix = false;
  bool changes_decoded = false;
};

constexpr std::uint64_t kBytePairs = 2;

SentencePieceModel::Piece read_piece(Fields fields) {
  SentencePieceModel::Piece piece;
  for (Field field; fields.next(field);) {
    if (field.number == 1 && field.is_bytes) piece.text = field.bytes;
    if (field.number == 2 && !field.fixed.empty()) piece.score = std::bit_cast<float>(read_u32(field.fixed, 0));
    if (field.number == 3 && field.is_varint) {
      if (field.varint < 1 || field.varint > 6) fields.fail("a piece has type " + std::to_string(field.varint));
      piece.type = static_cast<SentencePieceModel::Type>(field.varint);
    }
  }
  if (piece.text.empty() || utf8_valid_prefix(piece.text) != piece.text.size()) {
    fields.fail("a piece is empty or no valid UTF-8");
  }
  return piece;
}

void read_trainer_spec(Fields fields, Settings& settings, SentencePieceModel& model) {
  for (Field field; fields.next(field);) {
    if (field.number == 3 && field.is_varint) settings.model_type = field.varint;
    if (field.number == 24 && field.is_varint) settings.space_as_suffix = field.varint != 0;
    if (field.number == 35 && field.is_varint) model.byte_fallback = field.varint != 0;
    if (field.number == 44 && field.is_bytes) model.unknown_text = field.bytes;
    if (field.number == 46 && field.is_bytes) model.bos_text = field.bytes;
    if (field.number == 47 && field.is_bytes) model.eos_text = field.bytes;
  }
}

void read_normalizer_spec(Fields fields, NormalizerSpec& spec) {
  for (Field field; fields.next(field);) {
    if (field.number == 2 && field.is_bytes) spec.character_map = field.bytes;
    if (field.number == 3 && field.is_varint) spec.dummy_prefix = field.varint != 0;
    if (field.number == 4 && field.is_varint) spec.remove_extra_spaces = field.varint != 0;
    if (field.number == 5 && field.is_varint) spec.escape_spaces = field.varint != 0;
  }
}

/// True when a normalizer_spec has a character map. That of a denormalizer would change decoded texts.
bool has_character_map(Fields fields) {
  NormalizerSpec spec;
  read_normalizer_spec(fields, spec);
  return !spec.character_map.empty();
}

void check_settings(const Settings& settings, const std::string& file) {
  const auto refuse = [&](const std::string& what) { throw FormatError(file + ": " + what + " is not supported"); };
  // Unigram models are refused: versions of the library break ties between unigrams differently, and no supported model
  // uses them.
  if (settings.model_type != kBytePairs)
    refuse("model type " + std::to_string(settings.model_type) + " (2 is byte-pair encoding)");
  if (settings.space_as_suffix) refuse("putting spaces behind words (treat_whitespace_as_suffix)");
  if (settings.changes_decoded) refuse("a denormalizer, which replaces characters of decoded texts,");
}

/// True for lines that consist of a token in base64, a space and a rank (tiktoken's format).
bool is_tiktoken_table(std::string_view bytes) {
  const auto line = bytes.substr(0, bytes.find('\n'));
  const auto token = line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=");
  return token != 0 && token != line.npos && line[token] == ' ' && line.size() > token + 1 &&
         line.find_first_not_of("0123456789\r", token + 1) == line.npos;
}

/// Serializes normalizer_spec { add_dummy_prefix: false, remove_extra_whitespaces: false, escape_whitespaces: ... }.
std::string identity_spec(bool escape_spaces) {
  return std::string("\x1A\x06\x18\x00\x20\x00\x28", 7) + std::string(1, escape_spaces ? '\1' : '\0');
}

}  // namespace

CharacterMap::CharacterMap(std::string_view bytes, const std::string& file) {
  constexpr std::size_t kHeader = 4;
  const std::size_t trie_bytes = bytes.size() > kHeader ? read_u32(bytes, 0) : 0;
  if (trie_bytes == 0 || trie_bytes % sizeof(std::uint32_t) != 0 || trie_bytes >= bytes.size() - kHeader) {
    throw FormatError(file + ": the normalizer's character map of " + std::to_string(bytes.size()) +
                      " bytes says that its trie has " + std::to_string(trie_bytes) + ": the file is damaged");
  }
  for (std::size_t at = kHeader; at < kHeader + trie_bytes; at += 4) units_.push_back(read_u32(bytes, at));
  results_ = bytes.substr(kHeader + trie_bytes);
  if (results_.back() != '\0')
    throw FormatError(file + ": the normalizer's character map does not end with a zero: the file is damaged");
  check(file);
}

/// Visits every unit that a text can reach, so that find() needs no bounds checks.
void CharacterMap::check(const std::string& file) const {
  const auto refuse = [&](const char* what) {
    throw FormatError(file + ": the normalizer's character map leads outside of its " + what + ": the file is damaged");
  };
  std::vector<bool> seen(units_.size());
  std::vector<std::size_t> open{0};
  seen[0] = true;
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    const std::size_t children = at ^ offset_of(units_[at]);
    if ((children | 0xFF) >= units_.size()) refuse("trie");
    if (has_value(units_[at]) && value_of(units_[children]) >= results_.size()) refuse("results");
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::size_t child = children ^ byte;
      if (label_of(units_[child]) != byte || seen[child]) continue;
      seen[child] = true;
      open.push_back(child);
    }
  }
}

CharacterMap::Rule CharacterMap::find(std::string_view text) const {
  Rule rule;
  std::size_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    at ^= byte;
    const std::uint32_t unit = units_[at];
    if (label_of(unit) != byte) break;
    at ^= offset_of(unit);
    if (has_value(unit)) rule = {i + 1, results_.data() + value_of(units_[at])};
  }
  return rule;
}

SentencePieceNormalizer::SentencePieceNormalizer(const NormalizerSpec& spec, const std::vector<std::string>& symbols,
                                                 const std::string& file)
    : dummy_prefix_(spec.dummy_prefix),
      removes_(spec.remove_extra_spaces),
      escapes_(spec.escape_spaces),
      only_escapes_(spec.character_map.empty() && !removes_) {
  if (!spec.character_map.empty()) map_.emplace_back(spec.character_map, file);
  if (only_escapes_) return;  // symbols stay unchanged anyway when nothing is mapped or removed
  for (const auto& symbol : symbols) {
    auto& list = symbols_[static_cast<std::uint8_t>(symbol.at(0))];
    const auto shorter = [&](const std::string& other) { return other.size() < symbol.size(); };
    list.insert(std::find_if(list.begin(), list.end(), shorter), symbol);
  }
}

SentencePieceNormalizer::Step SentencePieceNormalizer::step(std::string_view text) const {
  for (const auto& symbol : symbols_[static_cast<std::uint8_t>(text[0])]) {
    if (text.starts_with(symbol)) return {symbol.size(), text.substr(0, symbol.size())};
  }
  if (!map_.empty()) {
    if (const auto rule = map_.front().find(text); rule.length > 0) return {rule.length, rule.result};
  }
  const std::size_t length = std::max<std::size_t>(1, utf8_character_length(text));
  return {length, text.substr(0, length)};
}

/// Number of bytes at the beginning that become spaces.
std::size_t SentencePieceNormalizer::skip_spaces(std::string_view text) const {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto next = step(text.substr(at));
    if (next.result != " ") break;
    at += next.length;
  }
  return at;
}

void SentencePieceNormalizer::trim_end(std::string& text) const {
  const std::string_view space = escapes_ ? kSpaceSign : " ";
  while (removes_ && text.ends_with(space)) text.resize(text.size() - space.size());
}

template <typename Add>
void SentencePieceNormalizer::for_parts(std::string_view text, bool dummy_prefix, const Add& add) const {
  const std::string_view space = escapes_ ? kSpaceSign : " ";
  std::size_t at = removes_ ? skip_spaces(text) : 0;
  const bool begins_valid = utf8_character_length(text.substr(at)) > 0;
  if (begins_valid && dummy_prefix && dummy_prefix_) add(space, at);
  bool after_space = removes_;
  while (at < text.size()) {
    auto [length, result] = step(text.substr(at));
    while (after_space && result.starts_with(' ')) result.remove_prefix(1);
    // Byte i of a result comes from byte i of the replaced bytes, or their last one, so that ids of single bytes have
    // ranges of their own.
    for (std::size_t i = 0; i < result.size(); ++i) {
      add(result[i] == ' ' ? space : result.substr(i, 1), at + std::min(i, length - 1));
    }
    if (!result.empty()) after_space = removes_ && result.ends_with(' ');
    at += length;
  }
}

NormalizedText SentencePieceNormalizer::normalize(std::string_view text, bool dummy_prefix) const {
  NormalizedText normalized{"", TextPlaces(text.size())};
  for_parts(text, dummy_prefix, [&](std::string_view bytes, std::size_t origin) {
    normalized.text += bytes;
    normalized.origins.add(origin, bytes.size());
  });
  trim_end(normalized.text);
  normalized.origins.resize(normalized.text.size());
  normalized.origins.add(text.size());
  return normalized;
}

std::string SentencePieceNormalizer::normalized_text(std::string_view text, bool dummy_prefix) const {
  std::string normalized;
  if (!only_escapes_) {
    for_parts(text, dummy_prefix, [&](std::string_view bytes, std::size_t) { normalized += bytes; });
    trim_end(normalized);
    return normalized;
  }
  const std::string_view space = escapes_ ? kSpaceSign : " ";
  normalized.reserve(text.size() + text.size() / 4 + space.size());
  if (dummy_prefix && dummy_prefix_ && utf8_character_length(text) > 0) normalized += space;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(' ', at), text.size());
    normalized += text.substr(at, end - at);
    if (end < text.size()) normalized += space;
    at = end + 1;
  }
  return normalized;
}

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file) {
  constexpr std::uint64_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kDenormalizerSpec = 5;
  if (is_tiktoken_table(bytes)) {
    throw FormatError(file +
                      ": is a table of tiktoken, as Llama 3's own tokenizer.model, and no SentencePiece model: " +
                      "take the model's directory for transformers, which has tokenizer.json");
  }
  SentencePieceModel model;
  Settings settings;
  Fields fields(bytes, bytes, file);
  for (Field field; fields.next(field);) {
    const bool normalizes = field.number == kNormalizerSpec || field.number == kDenormalizerSpec;
    if (field.number != kPieces && field.number != kTrainerSpec && !normalizes) continue;
    if (!field.is_bytes) fields.fail("field " + std::to_string(field.number) + " is no message");
    const Fields inner(field.bytes, bytes, file);
    if (field.number == kNormalizerSpec) read_normalizer_spec(inner, model.normalizer);
    if (field.number == kDenormalizerSpec) settings.changes_decoded |= has_character_map(inner);
    if (normalizes) continue;
    if (field.number == kPieces) model.pieces.push_back(read_piece(inner));
    if (field.number == kTrainerSpec) read_trainer_spec(inner, settings, model);
    model.serialized += field.serialized;
  }
  if (model.pieces.empty()) throw FormatError(file + ": holds no pieces, expected a SentencePiece model");
  check_settings(settings, file);
  model.serialized += identity_spec(model.normalizer.escape_spaces);
  return model;
}

}  // namespace fsdp
