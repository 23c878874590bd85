#include "lib/text/sources/file_names.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include "lib/base/text_format.hpp"

namespace fsdp::detail {
namespace {

template <class Value, std::size_t count>
using Table = std::array<std::pair<std::string_view, Value>, count>;

constexpr Table<NamedKind, 9> kKinds{{{".parquet", NamedKind::parquet},
                                      {".jsonl", NamedKind::json_lines},
                                      {".ndjson", NamedKind::json_lines},
                                      {".jsonlines", NamedKind::json_lines},
                                      {".jl", NamedKind::json_lines},
                                      {".csv", NamedKind::csv},
                                      {".tsv", NamedKind::csv},
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

}  // namespace

std::string lower_suffix(const std::filesystem::path& file) { return ascii_lower(file.extension().string()); }

NamedKind kind_by_name(const std::filesystem::path& file) { return find_in(kKinds, file, NamedKind::other); }

std::string unpacking_command(const std::filesystem::path& file) { return find_in(kUnpacking, file, ""); }

std::string foreign_kind(const std::filesystem::path& file) { return find_in(kForeign, file, ""); }

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
  // "readme.txt" describes, "readme.jsonl" may be data.
  const auto kind = kind_by_name(file);
  return (kind == NamedKind::other || kind == NamedKind::text) && unpacking_command(file).empty() &&
         std::any_of(kCompanionStems.begin(), kCompanionStems.end(), has_stem);
}

}  // namespace fsdp::detail
