#pragma once
// A hash of what decides the ids of texts, by which stored ids are found again.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lib/templates/chat/conversation_options.hpp"

namespace fsdp {

/// FNV-1a over texts, each of which ends for itself: "ab" and "c" differ from "a" and "bc".
class Fingerprint {
 public:
  void add(std::string_view text);
  /// All of a small file. \throws IoError
  void add_file(const std::filesystem::path& file);
  /// A file of data: path, size, modification time, first and last 256 KiB. \throws IoError
  void add_data_file(const std::filesystem::path& file);
  /// All that turns texts into ids: the version of this program, the contents of the tokenizer's files.
  /// \throws IoError
  void add_tokenizer(const std::string& tokenizer);
  /// All that turns samples into texts: the key or column, the options, the contents of the chat template.
  /// \param tokenizer  whose template is taken where the options name none
  void add_samples(const std::string& tokenizer, const std::string& field, const ConversationOptions& conversations);
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace fsdp
