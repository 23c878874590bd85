#include "lib/documents/file_kind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "lib/base/text/text_format.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/token_files/token_file.hpp"

namespace fsdp::detail {
namespace {

using namespace std::string_view_literals;

template <class Value, std::size_t count>
using Table = std::array<std::pair<std::string_view, Value>, count>;

constexpr Table<NamedKind, 10> kKinds{{{".parquet", NamedKind::parquet},
                                       {".jsonl", NamedKind::json_lines},
                                       {".ndjson", NamedKind::json_lines},
                                       {".jsonlines", NamedKind::json_lines},
                                       {".jl", NamedKind::json_lines},
                                       {".csv", NamedKind::csv},
                                       {".tsv", NamedKind::csv},
                                       {".arrow", NamedKind::arrow},
                                       {".json", NamedKind::json},
                                       {".txt", NamedKind::text}}};

constexpr Table<const char*, 15> kUnpacking{{{".gz", "gunzip"},
                                             {".tgz", "tar -xf"},
                                             {".zst", "zstd -d"},
                                             {".zstd", "zstd -d"},
                                             {".bz2", "bunzip2"},
                                             {".xz", "unxz"},
                                             {".lzma", "unlzma"},
                                             {".lz4", "lz4 -d"},
                                             {".lz", "lzip -d"},
                                             {".br", "brotli -d"},
                                             {".z", "uncompress"},
                                             {".zip", "unzip"},
                                             {".7z", "7z x"},
                                             {".rar", "unrar x"},
                                             {".tar", "tar -xf"}}};

constexpr Table<const char*, 19> kForeign{{{".arrow", "an Arrow file"},
                                           {".feather", "a Feather file"},
                                           {".orc", "an ORC file"},
                                           {".avro", "an Avro file"},
                                           {".tfrecord", "a TFRecord file"},
                                           {".tfrecords", "a TFRecord file"},
                                           {".bin", "raw token ids, as nanoGPT, llm.c and Megatron write them"},
                                           {".idx", "an index of raw token ids, as Megatron writes it"},
                                           {".npy", "a NumPy array"},
                                           {".npz", "NumPy arrays"},
                                           {".pkl", "a pickle"},
                                           {".pickle", "a pickle"},
                                           {".pt", "a file of PyTorch"},
                                           {".pth", "a file of PyTorch"},
                                           {".safetensors", "a safetensors file"},
                                           {".gguf", "a GGUF file"},
                                           {".db", "a data base"},
                                           {".sqlite", "an SQLite data base"},
                                           {".pdf", "a PDF"}}};

template <class Value, std::size_t count>
Value find_in(const Table<Value, count>& table, const std::filesystem::path& file, Value otherwise) {
  const auto suffix = lower_suffix(file);
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.first == suffix; });
  return found == table.end() ? otherwise : found->second;
}

constexpr const char* kTexts = "give its texts as Parquet, JSON Lines, CSV or plain UTF-8";
constexpr const char* kIds = "token ids are read from HDF5 (docs/formats.md, \"Token files\")";

struct Signature {
  std::string_view bytes;
  std::size_t offset;
  const char* what;
  const char* advice;
};
constexpr std::array<Signature, 31> kSignatures{{
    {"\x1f\x8b"sv, 0, "compressed by gzip: unpack it first", "gunzip"},
    {"\x28\xb5\x2f\xfd"sv, 0, "compressed by zstd: unpack it first", "zstd -d"},
    {"\xfd"
     "7zXZ"sv,
     0, "compressed by xz: unpack it first", "unxz"},
    {"PK\x03\x04"sv, 0, "a ZIP archive: unpack it first", "unzip"},
    {"\x04\x22\x4d\x18"sv, 0, "compressed by lz4: unpack it first", "lz4 -d"},
    {"\x02\x21\x4c\x18"sv, 0, "compressed by lz4: unpack it first", "lz4 -d"},
    {"\xff\x06\0\0sNaPpY"sv, 0, "compressed by Snappy: unpack it first", ""},
    {"7z\xbc\xaf\x27\x1c"sv, 0, "a 7z archive: unpack it first", "7z x"},
    {"Rar!\x1a\x07"sv, 0, "a RAR archive: unpack it first", "unrar x"},
    {"\x1f\x9d"sv, 0, "compressed by compress: unpack it first", "uncompress"},
    {"\x5d\0\0"sv, 0, "compressed by lzma: unpack it first", "unlzma"},
    {"ustar\0"sv, 257, "a tar archive: unpack it first", "tar -xf"},
    {"ustar  \0"sv, 257, "a tar archive: unpack it first", "tar -xf"},
    {"\x93NUMPY"sv, 0, "a NumPy array", kIds},
    {"\x88\xd8\x34\x01"sv, 0, "a token file of llm.c", kIds},
    {"\xa1\xd9\x34\x01"sv, 0, "a token file of llm.c", kIds},
    {"MMIDIDX\0\0"sv, 0, "the index of a token file of Megatron", kIds},
    {"ARROW1\0"sv, 0, "an Arrow (Feather) file", kTexts},
    {"\xff\xff\xff\xff"sv, 0, "an Arrow stream, as datasets.save_to_disk writes it", kTexts},
    {"FEA1\0"sv, 0, "a Feather file", kTexts},
    {"Obj\x01"sv, 0, "an Avro file", kTexts},
    {"SQLite format 3\0"sv, 0, "an SQLite data base", kTexts},
    {"GGUF"
     "\x03\0\0\0"sv,
     0, "a GGUF file of weights", ""},
    {"GGUF"
     "\x02\0\0\0"sv,
     0, "a GGUF file of weights", ""},
    {"%PDF-"sv, 0, "a PDF", kTexts},
    // Byte-order marks. UTF-32 comes first, because its mark begins like UTF-16's.
    {"\xff\xfe\0\0"sv, 0, "UTF-32 text: convert it first", "iconv -f UTF-32 -t UTF-8"},
    {"\0\0\xfe\xff"sv, 0, "UTF-32 text: convert it first", "iconv -f UTF-32 -t UTF-8"},
    {"\xff\xfe"sv, 0, "UTF-16 text: convert it first", "iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff"sv, 0, "UTF-16 text: convert it first", "iconv -f UTF-16 -t UTF-8"},
    {"\x7f"
     "ELF"sv,
     0, "a program", ""},
    {"\x89PNG\r\n"sv, 0, "a picture", ""},
}};

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what, std::string_view advice) {
  const auto separator = what.find(':') == what.npos ? ": " : " with ";
  throw FormatError(file.string() + ": is " + what + (advice.empty() ? "" : separator + std::string(advice)));
}

/// The first 8 bytes of a safetensors file are the length of its header, a JSON object.
bool is_safetensors(std::string_view head) {
  return head.size() > 8 && head[8] == '{' && head.substr(4, 4) == "\0\0\0\0"sv;
}

/// A pickle of protocol 2 or later begins with a mark and the version, from 4 on with a frame as well.
bool is_pickle(std::string_view head) {
  if (head.size() < 4 || head[0] != '\x80') return false;
  return (head[1] >= 4 && head[1] <= 5 && head[2] == '\x95') || ((head[1] == 2 || head[1] == 3) && head.back() == '.');
}

/// After "BZh" and the block size bzip2 writes the digits of pi, or of its square root when there is no block. "BZh"
/// alone may begin a text.
bool is_bzip2(std::string_view head) {
  if (!head.starts_with("BZh") || head.size() < 10 || head[3] < '1' || head[3] > '9') return false;
  return head.substr(4).starts_with("1AY&SY") || head.substr(4).starts_with("\x17rE8P\x90");
}

/// An ORC file begins with "ORC" and contains zero bytes.
bool is_orc(std::string_view head) { return head.starts_with("ORC") && head.find('\0') != head.npos; }

/// True when the text consists of characters in units of `width` bytes, most of them ASCII: UTF-16 or UTF-32 without a
/// byte-order mark.
bool is_wide_text(std::string_view head, std::size_t width, bool little_endian) {
  const std::size_t units = head.size() / width;
  std::size_t ascii = 0;
  for (std::size_t i = 0; i < units; ++i) {
    std::uint32_t value = 0;
    for (std::size_t b = 0; b < width; ++b) {
      const auto byte = static_cast<unsigned char>(head[i * width + (little_endian ? width - 1 - b : b)]);
      value = value << 8 | byte;
    }
    if (value > 0x10ffff || (value < 0x20 && value != '\n' && value != '\r' && value != '\t')) return false;
    if (value < 0x80) ++ascii;
  }
  return units > 1 && ascii * 2 > units;
}

const char* wide_encoding(std::string_view head) {
  if (head.find('\0') == head.npos) return nullptr;
  if (is_wide_text(head, 4, true)) return "UTF-32LE";
  if (is_wide_text(head, 4, false)) return "UTF-32BE";
  if (is_wide_text(head, 2, true)) return "UTF-16LE";
  return is_wide_text(head, 2, false) ? "UTF-16BE" : nullptr;
}

/// Position of the first byte that begins no character of UTF-8; npos when there is none. A character that is cut at
/// the end is accepted.
std::size_t first_ill_formed(std::string_view head) {
  const auto valid = utf8_valid_prefix(head);
  const bool cut = head.size() == kHead_bytes && utf8_printable_prefix(head) == valid;
  return valid == head.size() || cut ? head.npos : valid;
}

}  // namespace

std::string lower_suffix(const std::filesystem::path& file) { return ascii_lower(file.extension().string()); }

std::filesystem::path unpacked_name(const std::filesystem::path& file) {
  const auto suffix = lower_suffix(file);
  return suffix == ".gz" || suffix == ".zst" || suffix == ".zstd" ? file.stem() : file;
}

NamedKind kind_by_name(const std::filesystem::path& file) {
  const auto kind = find_in(kKinds, unpacked_name(file), NamedKind::other);
  return (kind == NamedKind::parquet || kind == NamedKind::arrow) && unpacked_name(file) != file ? NamedKind::other
                                                                                                 : kind;
}

std::string unpacking_command(const std::filesystem::path& file) { return find_in(kUnpacking, file, ""); }

std::string foreign_kind(const std::filesystem::path& file) { return find_in(kForeign, file, ""); }

void refuse_foreign_format(const std::filesystem::path& file, std::string_view head) {
  if (const auto tokens = token_format_of(head); !tokens.empty())
    refuse(file, std::string(tokens) + ", which holds tokens already or no text", "");
  for (const auto& [bytes, offset, what, advice] : kSignatures) {
    if (head.size() >= offset && head.substr(offset).starts_with(bytes)) refuse(file, what, advice);
  }
  if (is_bzip2(head)) refuse(file, "compressed by bzip2: unpack it first", "bunzip2");
  if (is_safetensors(head)) refuse(file, "a safetensors file of weights", "");
  if (is_pickle(head)) refuse(file, "a pickle", kTexts);
  if (is_orc(head)) refuse(file, "an ORC file", kTexts);
  if (const auto* encoding = wide_encoding(head)) {
    refuse(file, std::string(encoding) + " text without a byte-order mark: convert it first",
           "iconv -f " + std::string(encoding) + " -t UTF-8");
  }
}

void refuse_binary(const std::filesystem::path& file, std::string_view head) {
  const auto nul = head.find('\0'), ill = first_ill_formed(head);
  if (std::min(nul, ill) == head.npos) return;
  const auto command = kind_by_name(file) == NamedKind::other ? unpacking_command(file) : "";
  auto known = foreign_kind(file);
  if (!command.empty()) known = "compressed";
  const auto may_be = known.empty() ? std::string() : " (by its name it is " + known + ")";
  const auto cure = !command.empty()                    ? "unpack it first with " + command
                    : known.find("token") != known.npos ? std::string(kIds)
                    : nul == head.npos                  ? "convert it, such as with iconv -f LATIN1 -t UTF-8"
                                                        : std::string(kTexts);
  const auto what = nul <= ill ? std::string("is a NUL byte, so this is no text")
                               : fmt::format("is byte 0x{:02x}, so this is no UTF-8",
                                             static_cast<unsigned>(static_cast<unsigned char>(head[ill])));
  throw FormatError(file.string(), std::min(nul, ill), what + may_be + ": " + cure);
}

}  // namespace fsdp::detail
