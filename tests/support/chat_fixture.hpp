#pragma once
// Chat templates and conversations of tests/fixtures/jinja.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/templates/chat/chat_template.hpp"

namespace fsdp::test {

inline const std::filesystem::path kJinjaFixtures = FSDP_FIXTURE_DIR "/jinja";

inline nlohmann::ordered_json jinja_fixture(const std::string& name) {
  return nlohmann::ordered_json::parse(read_text_file(kJinjaFixtures / name));
}

/// Their names, without suffixes.
inline std::vector<std::string> chat_templates() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(kJinjaFixtures)) {
    if (file.path().extension() == ".jinja") names.push_back(file.path().stem().string());
  }
  return names;
}

/// A template with the clock of the fixtures, 2026-03-09T07:05:03.
inline std::shared_ptr<const ChatTemplate> fixture_template(const std::string& name,
                                                            const nlohmann::ordered_json& truth) {
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 2;
  now.tm_mday = 9;
  now.tm_hour = 7;
  now.tm_min = 5;
  now.tm_sec = 3;
  now.tm_wday = 1;
  now.tm_yday = 67;
  return std::make_shared<ChatTemplate>(name, read_text_file(kJinjaFixtures / (name + ".jinja")),
                                        truth["special_tokens"].get<std::map<std::string, std::string>>(), now);
}

/// A conversation as transformers gives it to a template.
inline Conversation conversation_named(const std::string& name) {
  Conversation found;
  for (const auto& one : jinja_fixture("conversations.json")) {
    if (one["name"] != name) continue;
    found.messages = as_templates_read(one["messages"]);
    found.variables = one["variables"];
    for (const auto* key : {"tools", "documents"}) {
      if (one.contains(key)) found.variables[key] = one[key];
    }
  }
  return found;
}

}  // namespace fsdp::test
