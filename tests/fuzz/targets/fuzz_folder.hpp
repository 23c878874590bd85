#pragma once
// Folders as inputs, and their changes. Include once per target: this defines libFuzzer's mutator.
//
// An input holds files, each as: u8 index into the target's names, u32 little-endian length, bytes. With 128 added to
// the index, the bytes are the parts of a torch.save archive: u16 length and data.pkl, and for each storage u16 length
// and bytes. The archive is made of them, so that a changed pickle stays in an archive that is whole. The last file,
// and the last part, may be cut short.
#include <array>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fuzz_support.hpp"
#include "lib/base/types/little_endian.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp::fuzz {

constexpr unsigned char kIsArchive = 128;

/// Takes `LengthType` length and as many bytes off the front of `text`.
template <typename LengthType>
std::string_view take_part(std::string_view& text) {
  const std::size_t length = text.size() < sizeof(LengthType) ? 0 : detail::read_le<LengthType>(text, 0);
  text.remove_prefix(std::min(sizeof(LengthType), text.size()));
  const auto part = text.substr(0, length);
  text.remove_prefix(part.size());
  return part;
}

struct InputFile {
  unsigned char name = 0;
  std::string_view bytes;
};

inline std::vector<InputFile> files_of(std::string_view input) {
  std::vector<InputFile> files;
  while (!input.empty()) {
    const auto name = static_cast<unsigned char>(input[0]);
    input.remove_prefix(1);
    files.push_back({name, take_part<std::uint32_t>(input)});
  }
  return files;
}

inline std::vector<std::string> parts_of(std::string_view archive) {
  std::vector<std::string> parts;
  while (!archive.empty()) parts.emplace_back(take_part<std::uint16_t>(archive));
  return parts;
}

/// A zip archive as torch.save writes it, without alignment.
class ArchiveWriter {
 public:
  void add(const std::string& name, std::string_view bytes) {
    const auto crc = crc32(0, std::as_bytes(std::span(bytes)));
    const auto at = static_cast<std::uint32_t>(archive_.size());
    const auto describe = [&](std::string& out) {
      detail::append_le<std::uint64_t>(out, 0);  // flags, method, time, date
      detail::append_le(out, crc);
      for (int i = 0; i < 2; ++i) detail::append_le(out, static_cast<std::uint32_t>(bytes.size()));
      detail::append_le(out, static_cast<std::uint16_t>(name.size()));
    };
    archive_ += std::string_view("PK\3\4\0\0", 6);
    describe(archive_);
    archive_.append(2, '\0').append(name).append(bytes);
    directory_ += std::string_view("PK\1\2\0\0\0\0", 8);
    describe(directory_);
    directory_.append(12, '\0');
    detail::append_le(directory_, at);
    directory_ += name;
    ++count_;
  }
  std::string finish() {
    const auto at = static_cast<std::uint32_t>(archive_.size());
    archive_.append(directory_).append(std::string_view("PK\5\6\0\0\0\0", 8));
    for (int i = 0; i < 2; ++i) detail::append_le(archive_, count_);
    detail::append_le(archive_, static_cast<std::uint32_t>(directory_.size()));
    detail::append_le(archive_, at);
    archive_.append(2, '\0');
    return std::move(archive_);
  }

 private:
  std::string archive_, directory_;
  std::uint16_t count_ = 0;
};

inline std::string archive_of(std::string_view parts) {
  ArchiveWriter writer;
  writer.add("a/data.pkl", take_part<std::uint16_t>(parts));
  for (int number = 0; !parts.empty(); ++number)
    writer.add("a/data/" + std::to_string(number), take_part<std::uint16_t>(parts));
  return writer.finish();
}

/// A directory in memory.
class MemoryDirectory {
 public:
  /// Files of the previous input are removed. Names may have folders.
  std::filesystem::path fill(std::string_view input, std::span<const std::string_view> names) {
    files_.clear();
    for (const auto& [number, bytes] : files_of(input)) {
      const auto name = names[(number % kIsArchive) % names.size()];
      files_.add(name, number < kIsArchive ? std::string(bytes) : archive_of(bytes));
    }
    return MemoryFiles::root;
  }
  void replace(std::string_view name, std::string_view bytes) { files_.add(name, bytes); }

 private:
  MemoryFiles files_;
};

}  // namespace fsdp::fuzz

extern "C" {

std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size) __attribute__((weak));

/// Changes one part of one file, and keeps the lengths around it right; or removes, repeats or renames a file.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  using namespace fsdp;
  std::minstd_rand random(seed);
  const auto change = [](std::string_view part) {
    constexpr std::size_t most_added = 64;
    std::string changed(part);
    changed.resize(part.size() + most_added);
    changed.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(changed.data()), part.size(), changed.size()));
    return changed;
  };
  auto files = fuzz::files_of(fuzz::as_text(data, size));
  if (files.empty() || random() % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const auto chosen = random() % files.size();
  auto& file = files[chosen];
  std::string changed;
  switch (random() % 16) {
    case 0:
      file.name = static_cast<unsigned char>(random());
      break;
    case 1:
      files.erase(files.begin() + static_cast<std::ptrdiff_t>(chosen));
      break;
    case 2:
      files.push_back({static_cast<unsigned char>(random()), file.bytes});
      break;
    case 3:
      file.bytes = files[random() % files.size()].bytes;
      break;
    default:
      if (auto parts = fuzz::parts_of(file.bytes); file.name >= fuzz::kIsArchive && !parts.empty()) {
        auto& part = random() % 4 == 0 ? parts[random() % parts.size()] : parts[0];
        part = change(part);
        for (const auto& bytes : parts) {
          detail::append_le(changed, static_cast<std::uint16_t>(bytes.size()));
          changed += bytes;
        }
      } else {
        changed = change(file.bytes);
      }
      file.bytes = changed;
  }
  std::string text;
  for (const auto& [name, bytes] : files) {
    text += static_cast<char>(name);
    detail::append_le(text, static_cast<std::uint32_t>(bytes.size()));
    text += bytes;
  }
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // extern "C"
