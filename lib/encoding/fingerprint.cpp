#include "lib/encoding/fingerprint.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <span>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/chat_templates.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

namespace fsdp {
namespace {

/// To be raised when the same texts get other ids, or another mask, within a version.
constexpr const char* kEncoding = "2";

}  // namespace

void Fingerprint::add(std::string_view text) {
  const auto mix = [this](unsigned byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; };
  for (const char c : text) mix(static_cast<unsigned char>(c));
  mix(0xffu);  // separator that occurs in no UTF-8
}

void Fingerprint::add_file(const std::filesystem::path& file) { add(read_text_file(file)); }

void Fingerprint::add_data_file(const std::filesystem::path& file) {
  constexpr std::uint64_t most_bytes = 256 << 10;
  const auto handle = File::open_read(file);
  struct stat status {};
  if (::fstat(handle.fd(), &status) != 0) throw IoError(file.string() + ": cannot be looked at");
  const auto size = handle.size_bytes();
  std::error_code error;
  add(std::filesystem::canonical(file, error).string());
  add(fmt::format("{} {}.{:09}", size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
  // The modification time can be set, and the clock of a file server can stand still, so contents count, too.
  std::string bytes(std::min(size, most_bytes), '\0');
  for (const auto offset : {std::uint64_t{0}, size - bytes.size()}) {
    handle.read_at(offset, std::as_writable_bytes(std::span(bytes)));
    add(bytes);
  }
}

void Fingerprint::add_tokenizer(const std::string& tokenizer) {
  add(FSDP_VERSION);
  add(kEncoding);
  const auto files = tokenizer_files(tokenizer);
  if (files.empty()) add(tokenizer);
  for (const auto& file : files) {
    add(file.filename().string());
    add_file(file);
  }
}

void Fingerprint::add_samples(const std::string& tokenizer, const std::string& field, const ConversationOptions& chat) {
  add(field);
  add(fmt::format("{} {} {} {}", name_of(kDataFormNames, chat.form), chat.train_on == TrainOn::all,
                  chat.marks == MarksInTexts::plain_text, chat.pairs == PairEncoding::separate));
  add(fmt::format("{} {}", chat.max_prompt_length, chat.truncation == Truncation::keep_end));
  if (chat.judged) add("judged");
  if (chat.head != HeadKind::next_token) {
    add(fmt::format("{} {}", name_of(kHeadNames, chat.head), chat.padding_id));
    for (const auto& label : chat.labels) add(label);
  }
  // The tokenizer's own chat template, or the name, file or folder that was given instead.
  add(chat.chat_template);
  const std::filesystem::path given = chat.chat_template;
  std::vector<std::filesystem::path> templates{given, given / "tokenizer_config.json"};
  for (const auto& directory : {std::filesystem::path(tokenizer), given}) {
    for (auto& file : chat_template_files(directory)) templates.push_back(std::move(file));
  }
  for (const auto& file : templates) {
    std::error_code ignored;
    add(file.filename().string());
    if (std::filesystem::is_regular_file(file, ignored)) add_file(file);
  }
}

}  // namespace fsdp
