// Token files without an index: those of llm.c and llmq, ids and nothing else (nanoGPT), and NumPy's arrays.
//
// Sources: llm.c (dev/data/data_common.py, llmc/dataloader.h), llmq (scripts/tokenize_data.py, src/training/
// dataloader.cpp), NumPy's format specification (numpy/lib/format.py) up to version 3.0.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/token_files/array_tokens.hpp"
#include "lib/token_files/token_file_formats.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kHeaderBytes = 1024;  ///< of llm.c and llmq: 256 int32

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& problem) {
  throw FormatError(file.string() + ": " + problem);
}

using Header = std::array<std::int32_t, kHeaderBytes / sizeof(std::int32_t)>;

Header read_header(const File& file, std::string_view program) {
  static_assert(std::endian::native == std::endian::little);
  if (file.size_bytes() < kHeaderBytes) {
    refuse_file(file.path(), fmt::format("ends inside the header of {}'s token files, which has {} bytes: it has {}",
                                         program, kHeaderBytes, file.size_bytes()));
  }
  Header header;
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  return header;
}

/// The ids after a header that counts them, up to the end of the file.
std::unique_ptr<TokenFile> counted_ids(std::shared_ptr<const File> file, std::int64_t count, NumberType type,
                                       const TokenFileOptions& options) {
  const auto& path = file->path();
  if (count < 0) refuse_file(path, fmt::format("its header says {} ids", count));
  const auto held = file->size_bytes() - kHeaderBytes;
  const auto width = static_cast<std::uint64_t>(type.bytes);
  if (held != static_cast<std::uint64_t>(count) * width) {
    refuse_file(path, fmt::format("its header says {} ids of {} bytes, and {} bytes follow it instead of {}", count,
                                  width, held, static_cast<std::uint64_t>(count) * width));
  }
  return ArrayTokens::stream(IdArray(std::move(file), kHeaderBytes, count, type), options.stream_inputs);
}

// --- llm.c and llmq

constexpr std::int32_t kLlmcShort = 20240520, kLlmcLong = 20240801, kLlmcEvaluation = 20240522;
constexpr std::string_view kLlmqMagic = "BIN.TOK\n";

std::optional<std::int32_t> llmc_magic(std::string_view head) {
  std::int32_t magic = 0;
  if (head.size() < sizeof(magic)) return std::nullopt;
  std::memcpy(&magic, head.data(), sizeof(magic));
  const bool known = magic == kLlmcShort || magic == kLlmcLong || magic == kLlmcEvaluation;
  return known ? std::optional(magic) : std::nullopt;
}

// --- NumPy

constexpr std::string_view kNpyMagic = "\x93NUMPY";

struct NpyHeader {
  std::string type;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Reads the header's Python literal: a dict of 'descr', 'fortran_order' and 'shape'.
class NpyHeaderReader {
 public:
  NpyHeaderReader(std::string_view text, const std::filesystem::path& file) : text_(text), file_(file) {}

  NpyHeader read() {
    NpyHeader header;
    std::vector<std::string> seen;
    expect('{');
    while (!take('}')) {
      const auto key = quoted();
      expect(':');
      if (key == "descr") {
        if (peek() != '\'' && peek() != '"') refuse_file(file_, "holds records, and ids are whole numbers");
        header.type = quoted();
      } else if (key == "fortran_order") {
        header.fortran_order = truth_value();
      } else if (key == "shape") {
        header.shape = numbers();
      } else {
        wrong();
      }
      seen.push_back(key);
      if (!take(',') && peek() != '}') wrong();
    }
    if (seen.size() != 3) wrong();
    return header;
  }

 private:
  [[noreturn]] void wrong() const {
    refuse_file(file_, "its header is no dict of 'descr', 'fortran_order' and 'shape', as NumPy writes it");
  }
  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) wrong();
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') wrong();
    const auto end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) wrong();
    const std::string found(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return found;
  }
  bool truth_value() {
    peek();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>("True", true), {"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    wrong();
  }
  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> found;
    expect('(');
    while (!take(')')) {
      constexpr std::int64_t kMost = std::int64_t{1} << 50;  // ids in a file
      std::int64_t number = 0;
      const auto begin = (peek(), at_);
      for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_) {
        number = number * 10 + (text_[at_] - '0');
        if (number > kMost) refuse_file(file_, "its header says a shape that no file holds");
      }
      if (at_ == begin) wrong();
      found.push_back(number);
      if (!take(',') && peek() != ')') wrong();
    }
    return found;
  }

  std::string_view text_;
  const std::filesystem::path& file_;
  std::size_t at_ = 0;
};

NumberType npy_number_type(const std::string& text, const std::filesystem::path& file) {
  if (text.find('O') != std::string::npos)
    refuse_file(file, "holds pickled objects, which are not read: save an array of whole numbers");
  const bool known = text.size() == 3 && std::string_view("<>|=").find(text[0]) != std::string_view::npos &&
                     (text[1] == 'i' || text[1] == 'u') &&
                     std::string_view("1248").find(text[2]) != std::string_view::npos;
  if (!known) refuse_file(file, fmt::format("holds numbers of type '{}', and ids are whole numbers", text));
  return {text[2] - '0', text[1] == 'i', text[0] == '>'};
}

}  // namespace

bool is_llmc(const std::filesystem::path&, std::string_view head) { return llmc_magic(head).has_value(); }

std::unique_ptr<TokenFile> open_llmc_tokens(const std::filesystem::path& path, const TokenFileOptions& options) {
  auto file = std::make_shared<const File>(File::open_read(path));
  const auto header = read_header(*file, "llm.c");
  const auto magic = header[0], version = header[1];
  if (magic == kLlmcEvaluation)
    refuse_file(path, "holds multiple-choice questions of llm.c, which is no training data");
  const bool is_long = magic == kLlmcLong;
  if (version != (is_long ? 7 : 1)) {
    refuse_file(path, fmt::format("is of version {} of llm.c's token files with ids of {} bytes, and {} is known",
                                  version, is_long ? 4 : 2, is_long ? 7 : 1));
  }
  return counted_ids(std::move(file), header[2], {is_long ? 4 : 2, false, false}, options);
}

bool is_llmq(const std::filesystem::path&, std::string_view head) { return head.starts_with(kLlmqMagic); }

std::unique_ptr<TokenFile> open_llmq_tokens(const std::filesystem::path& path, const TokenFileOptions& options) {
  auto file = std::make_shared<const File>(File::open_read(path));
  const auto header = read_header(*file, "llmq");
  const auto version = header[2], bytes = header[3];
  if (version != 1 && version != 2)
    refuse_file(path, fmt::format("is of version {} of llmq's token files, and 1 and 2 are known", version));
  if (bytes != 4) refuse_file(path, fmt::format("has ids of {} bytes, and llmq's have 4", bytes));
  if (header[6] != 0) {
    refuse_file(
        path,
        "has masks: llmq's writer marks the ids of answers, and its reader takes a mark for the id after it, so that "
        "they say two things; write the data with a loss_mask");
  }
  return counted_ids(std::move(file), header[4], {4, true, false}, options);
}

bool is_npy(const std::filesystem::path& file, std::string_view head) {
  return file.extension() == ".npy" || head.starts_with(kNpyMagic);
}

std::unique_ptr<TokenFile> open_npy_tokens(const std::filesystem::path& path, const TokenFileOptions& options) {
  auto file = std::make_shared<const File>(File::open_read(path));
  std::array<unsigned char, 12> start{};
  const auto size = file->size_bytes();
  if (size < start.size()) refuse_file(path, "ends inside the header of a NumPy array");
  file->read_at(0, std::as_writable_bytes(std::span(start)));
  if (std::memcmp(start.data(), kNpyMagic.data(), kNpyMagic.size()) != 0)
    refuse_file(path, "is no NumPy array, whose first bytes are \\x93NUMPY");
  const int major = start[6];
  if (major < 1 || major > 3)
    refuse_file(path, fmt::format("is of version {} of NumPy's format, and 1 to 3 are known", major));
  const std::uint64_t begin = major == 1 ? 10 : 12;
  std::uint64_t length = start[8] | start[9] << 8;
  if (major > 1) length |= static_cast<std::uint64_t>(start[10]) << 16 | static_cast<std::uint64_t>(start[11]) << 24;
  constexpr std::uint64_t kLongestHeader = 1 << 16;
  if (length > kLongestHeader || begin + length > size) refuse_file(path, "ends inside the header of a NumPy array");
  std::string text(length, '\0');
  file->read_at(begin, std::as_writable_bytes(std::span(text)));
  const auto header = NpyHeaderReader(text, path).read();
  const auto type = npy_number_type(header.type, path);
  if (header.shape.empty() || header.shape.size() > 2) {
    refuse_file(path,
                fmt::format("is an array of {} dimensions: a stream has one, rows have two", header.shape.size()));
  }
  const auto& shape = header.shape;
  const auto held = (size - begin - length) / static_cast<std::uint64_t>(type.bytes);
  const auto columns = static_cast<std::uint64_t>(shape.size() == 2 ? shape[1] : 1);
  const auto first = static_cast<std::uint64_t>(shape[0]);
  // Without a product that could overflow.
  const bool fits = columns == 0 || first <= held / columns;
  if (!fits || first * columns * static_cast<std::uint64_t>(type.bytes) != size - begin - length) {
    refuse_file(
        path, fmt::format("its header says {} numbers of {} bytes, and {} bytes follow it",
                          shape.size() == 2 ? fmt::format("{} x {}", shape[0], shape[1]) : fmt::format("{}", shape[0]),
                          type.bytes, size - begin - length));
  }
  IdArray ids(std::move(file), begin + length, static_cast<std::int64_t>(first * columns), type);
  if (shape.size() == 1) return ArrayTokens::stream(std::move(ids), options.stream_inputs);
  if (shape[0] == 0 || shape[1] < 2)
    refuse_file(path, fmt::format("holds {} rows of {} ids, and 2 are needed to predict one", shape[0], shape[1]));
  const ArrayTokens::Rows rows = header.fortran_order ? ArrayTokens::Rows{shape[0], shape[1], 1, shape[0]}
                                                      : ArrayTokens::Rows{shape[0], shape[1], shape[1], 1};
  return ArrayTokens::rows(std::move(ids), rows);
}

bool is_raw(const std::filesystem::path& file, std::string_view) { return file.extension() == ".bin"; }

std::unique_ptr<TokenFile> open_raw_tokens(const std::filesystem::path& path, const TokenFileOptions& options) {
  if (!options.raw) {
    throw FormatError(
        path.string() +
            ": is neither a file of llm.c or llmq nor beside an index of Megatron (.idx); ids and nothing "
            "else do not say how wide they are",
        {Remedy::of_option, "token-dtype"});
  }
  auto file = std::make_shared<const File>(File::open_read(path));
  const auto size = file->size_bytes(), width = static_cast<std::uint64_t>(options.raw->bytes);
  if (size % width != 0)
    refuse_file(path, fmt::format("has {} bytes, which are no whole number of ids of {} bytes", size, width));
  return ArrayTokens::stream(IdArray(std::move(file), 0, static_cast<std::int64_t>(size / width), *options.raw),
                             options.stream_inputs);
}

}  // namespace fsdp
