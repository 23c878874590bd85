#include "lib/text/token_files/token_file_output.hpp"

#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <system_error>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/output_file.hpp"
#include "lib/base/shared_write.hpp"

namespace fsdp::detail {
namespace {

std::filesystem::path directory_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

/// Where a file is until it is whole.
std::filesystem::path hidden_sibling(const std::filesystem::path& file) {
  return directory_of(file) / ("." + file.filename().string() + "." + process_tag() + ".tmp");
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

/// HDF5 repeats the system's reason inside a long line: "..., error message = 'No space left on device', buf = ...".
std::string short_reason(const std::string& text) {
  constexpr std::string_view kMark = "error message = '";
  const auto at = text.find(kMark);
  const auto end = at == std::string::npos ? at : text.find('\'', at + kMark.size());
  return end == std::string::npos ? text : text.substr(at + kMark.size(), end - at - kMark.size());
}

template <class Id>
void append_as(std::span<const std::int32_t> ids, std::int64_t vocab_size, std::vector<std::byte>& bytes) {
  auto at = bytes.size();
  bytes.resize(at + ids.size() * sizeof(Id));
  for (const auto id : ids) {
    if (id < 0 || id >= vocab_size) {
      throw std::invalid_argument("token id " + std::to_string(id) + " is not in [0, " + std::to_string(vocab_size) +
                                  ")");
    }
    const auto value = static_cast<Id>(id);
    std::memcpy(bytes.data() + at, &value, sizeof value);
    at += sizeof value;
  }
}

}  // namespace

File nameless_file(const std::filesystem::path& file, const char* what) {
  auto name = file;
  name.replace_filename("." + file.filename().string() + "." + process_tag() + "." + what + ".tmp");
  auto created = File::create_new(name);
  std::filesystem::remove(name);
  return created;
}

void throw_not_written(const std::filesystem::path& file, const std::exception& error) {
  auto reason = short_reason(error.what());
  const auto hidden = hidden_sibling(file).string();
  for (auto at = reason.find(hidden); at != reason.npos; at = reason.find(hidden)) {
    reason.replace(at, hidden.size(), file.string());
  }
  throw IoError(file.string() + ": token file not written: " + reason);
}

TokenFileOutput::TokenFileOutput(const std::filesystem::path& file, const TokenFileNotes& notes)
    : file_(seekable_output(file)),
      temporary_(hidden_sibling(file_)),
      vocab_size_(notes.vocab_size),
      element_bytes_(notes.vocab_size <= 65536 ? 2 : 4),
      masked_(notes.masked) {
  if (vocab_size_ < 1) throw UsageError("a vocabulary of " + std::to_string(vocab_size_) + " ids");
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) throw UsageError(file.string() + ": is a directory, name a file");
  if (!std::filesystem::is_directory(directory_of(file_), error)) {
    throw IoError(file.string() + ": there is no directory " + directory_of(file_).string() + " to write it to");
  }
  try {
    writing(file_, [&] { create(notes); });
  } catch (...) {
    discard();
    throw;
  }
}

void TokenFileOutput::create(const TokenFileNotes& notes) {
  // HDF5 would hide the system's reason deep in its stack.
  File::create(temporary_).close();
  const auto access = unlocked_file_access(temporary_);
  handle_ = Hdf5File(
      check_hdf5(H5Fcreate(temporary_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), temporary_, "create"));
  put_attribute("tokenizer", notes.tokenizer);
  put_attribute("tokenizer_description", notes.tokenizer_description);
  put_attribute("vocab_size", notes.vocab_size);
  put_attribute("source_files", joined_lines(notes.sources));
  if (!notes.chat_template.empty()) put_attribute("chat_template", notes.chat_template);
  if (!notes.train_on.empty()) put_attribute("train_on", notes.train_on);
}

TokenFileOutput::~TokenFileOutput() { discard(); }

void TokenFileOutput::discard() noexcept {
  handle_ = Hdf5File();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void TokenFileOutput::check_mask(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask) const {
  if (mask.size() != (masked_ ? ids.size() : 0))
    throw std::invalid_argument("a loss mask of " + std::to_string(mask.size()) + " for " + std::to_string(ids.size()) +
                                " ids");
}

void TokenFileOutput::append(std::span<const std::int32_t> ids, std::vector<std::byte>& bytes) const {
  if (element_bytes_ == 2) {
    append_as<std::uint16_t>(ids, vocab_size_, bytes);
  } else {
    append_as<std::uint32_t>(ids, vocab_size_, bytes);
  }
}

void TokenFileOutput::put_attribute(const char* name, const std::string& text) const {
  const auto what = "write attribute '" + std::string(name) + "'";
  const Hdf5Type type(check_hdf5(H5Tcopy(H5T_C_S1), temporary_, what));
  check_hdf5(H5Tset_size(type.get(), H5T_VARIABLE), temporary_, what);
  check_hdf5(H5Tset_cset(type.get(), H5T_CSET_UTF8), temporary_, what);
  const Hdf5Space scalar(check_hdf5(H5Screate(H5S_SCALAR), temporary_, what));
  const UniqueHid<H5Aclose> attribute(check_hdf5(
      H5Acreate2(handle_.get(), name, type.get(), scalar.get(), H5P_DEFAULT, H5P_DEFAULT), temporary_, what));
  const char* value = text.c_str();
  check_hdf5(H5Awrite(attribute.get(), type.get(), &value), temporary_, what);
}

void TokenFileOutput::put_attribute(const char* name, std::int64_t value) const {
  const auto what = "write attribute '" + std::string(name) + "'";
  const Hdf5Space scalar(check_hdf5(H5Screate(H5S_SCALAR), temporary_, what));
  const UniqueHid<H5Aclose> attribute(check_hdf5(
      H5Acreate2(handle_.get(), name, H5T_STD_I64LE, scalar.get(), H5P_DEFAULT, H5P_DEFAULT), temporary_, what));
  check_hdf5(H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value), temporary_, what);
}

void TokenFileOutput::commit() {
  check_hdf5(handle_.close(), temporary_, "complete the file");
  File::open_read(temporary_).sync();
  keep_mode(file_, temporary_);
  std::filesystem::rename(temporary_, file_);
  sync_directory(directory_of(file_));
}

}  // namespace fsdp::detail
