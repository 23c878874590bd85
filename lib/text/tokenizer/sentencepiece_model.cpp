#include "lib/text/tokenizer/sentencepiece_model.hpp"

#include <cstddef>

#include "lib/base/error.hpp"
#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

/// One field of a protocol buffer.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t varint = 0;  ///< wire type 0
  bool is_varint = false;
  bool is_bytes = false;
  std::string_view bytes;       ///< wire type 2
  std::string_view serialized;  ///< all of it
};

/// Reads the fields of one message; nested ones are its byte fields.
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
        take(4);
        break;
      default:
        fail("holds no SentencePiece model (wire type " + std::to_string(key & 7) + ")");
    }
    if (field.number == 0) fail("holds no SentencePiece model (field 0)");
    field.serialized = {begin, static_cast<std::size_t>(rest_.data() - begin)};
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

/// A map of characters acts on what ids decode to.
bool has_character_map(Fields fields) {
  NormalizerSpec spec;
  read_normalizer_spec(fields, spec);
  return !spec.character_map.empty();
}

void check_settings(const Settings& settings, const std::string& file) {
  const auto refuse = [&](const std::string& what) { throw FormatError(file + ": " + what + " is not supported"); };
  // Versions of the library break ties between unigrams differently, and no model here uses unigrams.
  if (settings.model_type != kBytePairs)
    refuse("model type " + std::to_string(settings.model_type) + " (2 is byte-pair encoding)");
  if (settings.space_as_suffix) refuse("putting spaces behind words (treat_whitespace_as_suffix)");
  if (settings.changes_decoded) refuse("a denormalizer, which replaces characters of decoded texts,");
}

/// True for lines of a token in base64, a space and its rank.
bool is_tiktoken_table(std::string_view bytes) {
  const auto line = bytes.substr(0, bytes.find('\n'));
  const auto token = line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=");
  return token != 0 && token != line.npos && line[token] == ' ' && line.size() > token + 1 &&
         line.find_first_not_of("0123456789\r", token + 1) == line.npos;
}

/// normalizer_spec { add_dummy_prefix: false, remove_extra_whitespaces: false, escape_whitespaces: ... }
std::string identity_spec(bool escape_spaces) {
  return std::string("\x1A\x06\x18\x00\x20\x00\x28", 7) + std::string(1, escape_spaces ? '\1' : '\0');
}

}  // namespace

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
