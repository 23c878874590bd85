#include "lib/token_files/token_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/token_files/joined_tokens.hpp"
#include "lib/token_files/token_file_formats.hpp"

namespace fsdp {
namespace {

struct TokenFileFormat {
  std::string_view what;  ///< for messages
  bool (*recognises)(const std::filesystem::path& file, std::string_view head);
  std::unique_ptr<TokenFile> (*open)(const std::filesystem::path& file, const TokenFileOptions& options);
};

/// The first one that recognises a file opens it. What has no known name or first bytes is opened, and refused, by the
/// first format.
constexpr TokenFileFormat kFormats[] = {
    {"an HDF5 file", is_hdf5_tokens, open_hdf5_tokens},   {"an index of Megatron", is_megatron, open_megatron_tokens},
    {"a token file of llm.c", is_llmc, open_llmc_tokens}, {"a token file of llmq", is_llmq, open_llmq_tokens},
    {"a NumPy array", is_npy, open_npy_tokens},           {"a column of ids", is_arrow_tokens, open_arrow_tokens},
    {"ids and nothing else", is_raw, open_raw_tokens}};

std::string first_bytes_of(const std::filesystem::path& file) {
  constexpr std::uint64_t kMost = 16;
  const auto handle = File::open_read(file);
  std::string bytes(std::min(kMost, handle.size_bytes()), '\0');
  handle.read_at(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// \return null for none
const TokenFileFormat* format_of(const std::filesystem::path& file) {
  std::error_code error;
  // A name says enough for a file that cannot be read: it is refused when it is opened.
  for (const auto& format : kFormats) {
    if (format.open != open_raw_tokens && format.recognises(file, {})) return &format;
  }
  if (!std::filesystem::is_regular_file(file, error)) return nullptr;
  const auto head = first_bytes_of(file);
  const auto found = std::ranges::find_if(kFormats, [&](const auto& format) { return format.recognises(file, head); });
  return found == std::end(kFormats) ? nullptr : found;
}

/// A file's name without the number of a part: "train_" of train_000001.bin, "data-" of data-00000-of-00004.h5.
std::string name_of_parts(const std::filesystem::path& file) {
  auto name = file.stem().string();
  const auto drop_digits = [&] {
    const auto end = name.find_last_not_of("0123456789");
    const bool any = end + 1 < name.size();
    name.resize(end + 1);
    return any;
  };
  if (drop_digits() && name.ends_with("-of-")) {
    name.resize(name.size() - 4);
    drop_digits();
  }
  return name;
}

/// In a folder of datasets' save_to_disk, the list of its files.
constexpr const char* kDatasetState = "state.json";

/// Checks that a folder of datasets' save_to_disk has the files that it lists, and no others.
void check_dataset(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files) {
  const auto state = folder / kDatasetState;
  std::error_code error;
  if (!std::filesystem::exists(state, error)) return;
  constexpr std::uint64_t kLongest = 16 << 20;
  const auto json = parse_json_or_discard(read_text_file(state, kLongest), state.string());
  const auto listed = json.is_object() ? json.find("_data_files") : json.end();
  if (!json.is_object() || listed == json.end() || !listed->is_array()) return;
  std::vector<std::filesystem::path> names;
  for (const auto& entry : *listed) {
    if (entry.is_object() && entry.contains("filename") && entry["filename"].is_string())
      names.push_back(folder / entry["filename"].get<std::string>());
  }
  std::ranges::sort(names);
  for (const auto& name : names) {
    if (std::ranges::find(files, name) == files.end())
      throw MissingInput(name.string() + ": is not there, and " + state.string() + " lists it: copy the folder again");
  }
  if (names.size() == files.size()) return;
  throw FormatError(folder.string() + ": holds " + std::to_string(files.size()) + " files, and " + kDatasetState +
                    " lists " + std::to_string(names.size()) + " of them: name the files that are meant");
}

/// The token files in a folder, sorted; none where other data is there as well.
std::vector<std::filesystem::path> token_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto& path = entry.path();
    if (path.filename().string().starts_with('.')) continue;
    std::error_code none;
    if (!std::filesystem::is_regular_file(path, none)) return {};
    constexpr std::array<std::string_view, 4> kNotes{".md", ".pkl", ".yaml", ".yml"};
    if (std::ranges::find(kNotes, path.extension().string()) != kNotes.end()) continue;
    if (path.filename() == "dataset_info.json" || path.filename() == kDatasetState) continue;
    // datasets keeps results of map() and filter() beside the data.
    if (path.extension() == ".arrow" && path.filename().string().starts_with("cache-")) continue;
    if (format_of(path) == nullptr) return {};
    const bool has_index = path.extension() == ".bin" && is_megatron(path, {});
    if (!has_index) files.push_back(path);  // the index stands for both
  }
  std::ranges::sort(files);
  return files;
}

std::unique_ptr<TokenFile> open_folder(const std::filesystem::path& folder, const TokenFileOptions& options) {
  const auto files = token_files_in(folder);
  if (files.empty()) throw FormatError(folder.string() + ": holds no token files, or other files as well");
  check_dataset(folder, files);
  std::vector<std::unique_ptr<TokenFile>> parts;
  for (const auto& file : files) {
    if (name_of_parts(file) != name_of_parts(files.front())) {
      throw FormatError(folder.string() + ": holds token files of several names, " + files.front().filename().string() +
                        " and " + file.filename().string() +
                        ", of which one may be held out: name the file that is meant");
    }
    parts.push_back(open_token_file(file, options));
  }
  return join_token_files(folder, std::move(parts));
}

}  // namespace

TokenFile::TokenFile(std::filesystem::path file) : file_(std::move(file)), opened_(version()) {}

TokenFile::Version TokenFile::version() const {
  struct stat found {};
  if (::stat(file_.c_str(), &found) != 0) return {};
  return {.size_bytes = found.st_size, .seconds = found.st_mtim.tv_sec};
}

void TokenFile::check_unchanged() const {
  // Shared file systems settle the time of a file that another host has just written.
  constexpr std::int64_t kSettlingSeconds = 2;
  const auto now = version();
  if (now.size_bytes < 0 || opened_.size_bytes < 0) return;
  const bool same_size = now.size_bytes == opened_.size_bytes;
  if (same_size && std::abs(now.seconds - opened_.seconds) <= kSettlingSeconds) return;
  const auto what =
      same_size ? std::string("it was written again")
                : "it had " + std::to_string(opened_.size_bytes) + " bytes and has " + std::to_string(now.size_bytes);
  throw FormatError(file_.string() + ": has changed since this program opened it: " + what +
                    "; a file that is read must stay as it is, so write the new one under another name");
}

void TokenFile::check_part(std::int64_t record, std::size_t size) const {
  if (record < 0 || record >= num_records())
    throw std::out_of_range(file_.string() + ": record " + std::to_string(record) + " is not in [0, " +
                            std::to_string(num_records()) + ")");
  if (static_cast<std::int64_t>(size) > length(record))
    throw std::invalid_argument(file_.string() + ": " + std::to_string(size) + " ids of record " +
                                std::to_string(record) + ", which has " + std::to_string(length(record)));
}

void TokenFile::read_rows(std::span<const std::int64_t> rows, std::span<std::int32_t> out) const {
  const auto length = static_cast<std::size_t>(row_length());
  if (out.size() != rows.size() * length)
    throw std::invalid_argument("read_rows: " + std::to_string(rows.size()) + " rows of " + std::to_string(length) +
                                " ids do not fill a buffer of " + std::to_string(out.size()));
  for (std::size_t first = 0; first < rows.size();) {
    std::size_t end = first + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    check_part(rows[first], length);
    check_part(rows[end - 1], length);
    read_run(rows[first], static_cast<std::int64_t>(end - first), out.subspan(first * length, (end - first) * length));
    first = end;
  }
}

void TokenFile::read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const {
  const auto length = out.size() / static_cast<std::size_t>(count);
  for (std::int64_t i = 0; i < count; ++i) read(first + i, out.subspan(static_cast<std::size_t>(i) * length, length));
}

void TokenFile::read_loss_mask(std::int64_t record, std::span<std::uint8_t> out) const {
  check_part(record, out.size());
  std::ranges::fill(out, std::uint8_t{1});
}

std::unique_ptr<TokenFile> open_token_file(const std::filesystem::path& file, const TokenFileOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) return open_folder(file, options);
  const auto* format = format_of(file);
  return (format != nullptr ? *format : kFormats[0]).open(file, options);
}

bool is_token_file(const std::filesystem::path& file, const std::string& field) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    const auto files = token_files_in(file);
    return !files.empty() && is_token_file(files.front(), field);
  }
  if (!std::filesystem::is_regular_file(file, error)) return false;
  const auto* format = format_of(file);
  if (format == nullptr || format->open != open_arrow_tokens || field.empty()) return format != nullptr;
  return holds_ids(file, field);
}

std::string_view token_format_of(std::string_view first_bytes) {
  for (const auto& format : kFormats) {
    if (format.recognises({}, first_bytes)) return format.what;
  }
  return {};
}

void check_token_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size, const std::filesystem::path& file,
                     std::span<const std::int64_t> records) {
  if (records.empty() || ids.size() % records.size() != 0) {
    if (ids.empty()) return;
    throw std::invalid_argument("check_token_ids: " + std::to_string(ids.size()) + " ids are not " +
                                std::to_string(records.size()) + " records");
  }
  const std::size_t length = ids.size() / records.size();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw FormatError(file.string() + ": row " + std::to_string(records[i / length]) + ", position " +
                      std::to_string(i % length) + ": token id " + std::to_string(ids[i]) +
                      " is outside the model's vocabulary of " + std::to_string(vocab_size) +
                      "; was the file made with another tokenizer?");
  }
}

}  // namespace fsdp
