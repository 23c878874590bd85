#include "lib/text/sources/data_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/base/utf8.hpp"
#include "lib/text/token_files/token_file.hpp"

namespace fsdp::detail {
namespace {

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

constexpr std::array<std::string_view, 7> kCompanionNames{
    "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json",
    "_success",          "_metadata",          "_common_metadata"};
constexpr std::array<std::string_view, 11> kCompanionStems{"readme",     "license", "licence",   "notice",
                                                           "citation",   "authors", "changelog", "sha256sum",
                                                           "sha256sums", "md5sum",  "md5sums"};
constexpr std::array<std::string_view, 14> kCompanionSuffixes{
    ".md", ".rst", ".py", ".sh", ".ipynb", ".yml", ".yaml", ".crc", ".sha256", ".md5", ".png", ".jpg", ".svg", ".gif"};

template <class Value, std::size_t count>
Value find_in(const Table<Value, count>& table, const std::filesystem::path& file, Value otherwise) {
  const auto suffix = lower_suffix(file);
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.first == suffix; });
  return found == table.end() ? otherwise : found->second;
}

using namespace std::string_view_literals;

/// Returns the command that unpacks a file of this name, such as "gunzip"; empty for files that are not compressed.
std::string unpacking_command(const std::filesystem::path& file) { return find_in(kUnpacking, file, ""); }

/// Returns the kind of file that the suffix names, if no program here reads it: "an Arrow file"; empty for other
/// suffixes.
std::string foreign_kind(const std::filesystem::path& file) { return find_in(kForeign, file, ""); }

/// True for files that lie beside data and are never data: README, LICENSE, dataset_info.json, checksums, scripts,
/// pictures, hidden files.
bool is_companion(const std::filesystem::path& file) {
  const auto name = ascii_lower(file.filename().string());
  if (name.starts_with('.')) return true;
  const auto is = [&](std::string_view other) { return name == other; };
  const auto has_stem = [&](std::string_view stem) {
    return name.starts_with(stem) && (name.size() == stem.size() || name[stem.size()] == '.');
  };
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (std::any_of(kCompanionNames.begin(), kCompanionNames.end(), is)) return true;
  if (std::any_of(kCompanionSuffixes.begin(), kCompanionSuffixes.end(), ends)) return true;
  // "readme.txt" is a description, "readme.jsonl" may be data.
  const auto kind = kind_by_name(file);
  return (kind == NamedKind::other || kind == NamedKind::text) && unpacking_command(file).empty() &&
         std::any_of(kCompanionStems.begin(), kCompanionStems.end(), has_stem);
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

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr std::array kKindNames{"Parquet", "JSON Lines", "CSV", "Arrow", "JSON", "text"};  // by NamedKind
constexpr std::size_t kChosenKinds = 4;  ///< only one of the first four kinds may be there

/// The contents of a directory.
struct Listing {
  std::array<Paths, kKindNames.size()> data;
  Paths companions, others;
};

/// Refuses files that may be a part of the data and cannot be read.
void check_entry(const fs::directory_entry& entry) {
  const auto& path = entry.path();
  constexpr std::string_view name_others = "; to do without it, name the files that are meant";
  if (!entry.exists()) {
    throw MissingInput(path.string() + ": is a link to " + fs::read_symlink(path).string() +
                       ", which is not there: fetch or copy the data again" + std::string(name_others));
  }
  if (!entry.is_regular_file()) {
    throw FormatError(path.string() + ": is a pipe, a socket or a device, a regular file is needed" +
                      std::string(name_others));
  }
  const bool is_known = detail::kind_by_name(path) != detail::NamedKind::other;
  if (const auto command = detail::unpacking_command(path); !command.empty() && !is_known) {
    throw FormatError(path.string() + ": is compressed or an archive: unpack it first with " + command +
                      std::string(name_others));
  }
  constexpr std::array<std::string_view, 5> tables{".feather", ".orc", ".avro", ".tfrecord", ".tfrecords"};
  const auto suffix = detail::lower_suffix(path);
  if (std::find(tables.begin(), tables.end(), suffix) == tables.end()) return;
  throw FormatError(path.string() + ": is " + detail::foreign_kind(path) +
                    ": give the data as Parquet, JSON Lines, CSV or plain text" + std::string(name_others));
}

/// Refuses a link to a folder that contains the link: following it would not end.
void refuse_loop(const fs::path& link, const fs::path& directory) {
  for (auto above = link.parent_path();; above = above.parent_path()) {
    if (fs::equivalent(link, above)) {
      throw FormatError(link.string() + ": is a link to a folder that it lies in; name the files that are meant");
    }
    if (above == directory || above.empty() || above == above.parent_path()) return;
  }
}

Listing list_directory(const fs::path& directory) {
  Listing found;
  using Walk = fs::recursive_directory_iterator;
  for (auto entry = Walk(directory, fs::directory_options::follow_directory_symlink); entry != Walk(); ++entry) {
    const auto& path = entry->path();
    const bool hidden = path.filename().string().starts_with('.');
    if (entry->is_directory()) {
      if (hidden) entry.disable_recursion_pending();
      if (entry->is_symlink()) refuse_loop(path, directory);
      continue;
    }
    if (hidden || detail::is_companion(path)) {
      found.companions.push_back(path);
      continue;
    }
    check_entry(*entry);
    auto kind = static_cast<std::size_t>(detail::kind_by_name(path));
    // datasets keeps results of map() and filter() beside the data.
    if (path.extension() == ".arrow" && path.filename().string().starts_with("cache-")) kind = found.data.size();
    (kind < found.data.size() ? found.data[kind] : found.others).push_back(path);
  }
  for (auto& files : found.data) std::sort(files.begin(), files.end());
  return found;
}

/// Chooses the kind of files that is read.
std::size_t choose_kind(const fs::path& directory, const Listing& found) {
  std::string several;
  auto chosen = found.data.size();
  for (std::size_t k = 0; k < found.data.size(); ++k) {
    const auto count = found.data[k].size();
    if (count == 0 || (k >= kChosenKinds && chosen < k)) continue;
    several += (several.empty() ? "" : " and ") + std::to_string(count) + " " + kKindNames[k];
    if (chosen < k) {
      throw UsageError(directory.string() + ": holds " + several +
                       " files, which may be the same data twice; name the files that are meant");
    }
    chosen = k;
  }
  if (chosen < found.data.size()) return chosen;
  auto rest = found.others;
  rest.insert(rest.end(), found.companions.begin(), found.companions.end());
  throw FormatError(
      directory.string() +
      ": holds no data files (.parquet, .jsonl, .ndjson, .jsonlines, .jl, .csv, .tsv, .arrow, .json, .txt)" +
      (rest.empty() ? "" : ", but " + file_list(rest) + "; name the files that are meant"));
}

/// Refuses a DatasetDict of several splits: a test set among the data would be trained on.
void refuse_splits(const fs::path& directory) {
  if (!fs::exists(directory / "dataset_dict.json")) return;
  Paths splits;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (fs::exists(entry.path() / "state.json")) splits.push_back(entry.path());
  }
  std::sort(splits.begin(), splits.end());
  if (splits.size() > 1)
    throw UsageError(directory.string() + ": holds several splits; name the one that is meant: " + file_list(splits));
}

void add_directory(const fs::path& directory, DataFiles& all) {
  refuse_splits(directory);
  auto found = list_directory(directory);
  const auto chosen = choose_kind(directory, found);
  const auto append = [](Paths& to, const Paths& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (std::size_t k = 0; k < found.data.size(); ++k) append(k == chosen ? all.files : all.unread, found.data[k]);
  std::sort(found.others.begin(), found.others.end());
  std::sort(found.companions.begin(), found.companions.end());
  append(all.unread, found.others);
  append(all.companions, found.companions);
}

}  // namespace

DataFiles find_data_files(const Paths& inputs) {
  DataFiles all;
  for (const auto& input : inputs) {
    std::error_code error;
    const auto status = fs::status(input, error);
    if (!fs::exists(status)) {
      throw MissingInput(input.string() + ": " + (error ? error.message() : "No such file or directory"));
    }
    if (!fs::is_directory(status)) {
      if (!fs::is_regular_file(status)) {
        throw FormatError(input.string() + ": is a pipe or a device, a regular file is needed");
      }
      all.files.push_back(input);
      continue;
    }
    try {
      add_directory(input, all);
    } catch (const fs::filesystem_error& failure) {
      throw IoError(failure.path1().string() + ": cannot look for data files: " + failure.code().message());
    }
  }
  return all;
}

Paths data_files(const Paths& inputs) { return find_data_files(inputs).files; }

std::string file_list(const Paths& files, bool all) {
  constexpr std::size_t most_characters = 300;
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!all && text.size() > most_characters) return text + " and " + std::to_string(files.size() - i) + " more";
    text += (i == 0 ? "" : ", ") + printable(files[i].string());
  }
  return text;
}

}  // namespace fsdp
