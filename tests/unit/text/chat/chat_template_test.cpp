#include "lib/text/chat/chat_template.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "tests/support/temp_files.hpp"

namespace {

const std::string kFixtures = FSDP_FIXTURE_DIR "/chat/";

nlohmann::json expected_templates() {
  return nlohmann::json::parse(fsdp::read_text_file(kFixtures + "expected.json")).at("templates");
}

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string part_of(const fsdp::RenderedChat& chat, const fsdp::TextRange& range) {
  return chat.text.substr(range.begin, range.end - range.begin);
}

}  // namespace

TEST_SUITE("chat/chat_template") {
  TEST_CASE("render_chat: every conversation as Jinja writes it") {
    const auto lines = lines_of(kFixtures + "messages.jsonl");
    int rendered = 0;
    const auto templates = expected_templates();
    for (const auto& [name, truth] : templates.items()) {
      const auto bos = truth["bos"].is_null() ? std::string() : truth["bos"].get<std::string>();
      const fsdp::ChatTemplate chat{fsdp::chat_format(name).value(), bos, truth["eos"].get<std::string>()};
      for (const auto& conversation : truth["conversations"]) {
        CAPTURE(name);
        CAPTURE(conversation["index"].get<std::size_t>());
        const auto record = nlohmann::json::parse(lines.at(conversation["index"]));
        const auto messages = fsdp::read_messages(record["messages"], "messages");
        if (conversation.contains("error")) {
          CHECK_THROWS_AS(fsdp::render_chat(chat, messages), fsdp::FormatError);
          continue;
        }
        CHECK(fsdp::render_chat(chat, messages).text == conversation["text"].get<std::string>());
        ++rendered;
      }
    }
    CHECK(rendered == 52);
  }

  TEST_CASE("render_chat: the header of the next answer, and what ends it") {
    const std::vector<fsdp::ChatMessage> question{{"user", "Q"}};
    const auto behind = [&](fsdp::ChatFormat format) {
      const fsdp::ChatTemplate chat{format, "<s>", "</s>"};
      const auto plain = fsdp::render_chat(chat, question).text;
      const auto asked = fsdp::render_chat(chat, question, fsdp::NextTurn::assistant).text;
      CHECK(asked.starts_with(plain));
      return asked.substr(plain.size()) + "|" + fsdp::end_mark_of(chat);
    };
    CHECK(behind(fsdp::ChatFormat::qwen2) == "<|im_start|>assistant\n|<|im_end|>");
    CHECK(behind(fsdp::ChatFormat::llama3) == "<|start_header_id|>assistant<|end_header_id|>\n\n|<|eot_id|>");
    CHECK(behind(fsdp::ChatFormat::llama2) == "|</s>");
    CHECK(behind(fsdp::ChatFormat::gemma3) == "<start_of_turn>model\n|<end_of_turn>");
  }

  TEST_CASE("render_chat: answers with their end marks, contents without what the template writes") {
    const std::vector<fsdp::ChatMessage> messages{{"system", " s "}, {"user", " u "}, {"assistant", " a "}};
    struct Case {
      fsdp::ChatFormat format;
      std::string answer;
      std::vector<std::string> contents;
    };
    for (const auto& [format, answer, contents] :
         {Case{fsdp::ChatFormat::chatml, " a <|im_end|>", {" s ", " u ", " a "}},
          Case{fsdp::ChatFormat::llama3, "a<|eot_id|>", {"s", "u", "a"}},
          Case{fsdp::ChatFormat::llama2, " a </s>", {" s ", " u", "a"}},
          Case{fsdp::ChatFormat::gemma3, "a<end_of_turn>", {" s ", "u", "a"}}}) {
      const auto chat = fsdp::render_chat({format, "<s>", "</s>"}, messages);
      CAPTURE(chat.text);
      REQUIRE(chat.answers.size() == 1);
      CHECK(part_of(chat, chat.answers[0]) == answer);
      REQUIRE(chat.contents.size() == contents.size());
      for (std::size_t i = 0; i < contents.size(); ++i) CHECK(part_of(chat, chat.contents[i]) == contents[i]);
    }
    auto uncounted = messages;
    uncounted.back().counts = false;
    CHECK(fsdp::render_chat({fsdp::ChatFormat::chatml, "", ""}, uncounted).answers.empty());
    // Llama 2 trims the whole, so a system message before an empty question loses the line ends behind it.
    CHECK(fsdp::render_chat({fsdp::ChatFormat::llama2, "<s>", "</s>"}, {{"system", "s"}, {"user", " \n"}}).text ==
          "<s>[INST] <<SYS>>\ns\n<</SYS>> [/INST]");
  }

  TEST_CASE("recognise_template: both wordings of each, what models on the Hub bring, and no other") {
    int known = 0;
    for (const auto& file : std::filesystem::directory_iterator(kFixtures + "templates")) {
      CAPTURE(file.path().string());
      auto text = fsdp::read_text_file(file.path());
      auto name = file.path().stem().string();
      name = name.substr(0, name.find('-'));
      CHECK(fsdp::recognise_template(text) == fsdp::chat_format(name));
      CHECK(fsdp::recognise_template(text + "\n") == fsdp::chat_format(name));
      CHECK(!fsdp::recognise_template(text + "\n\n"));
      CHECK(!fsdp::recognise_template(" " + text));
      text[text.size() / 2] ^= 1;
      CHECK(!fsdp::recognise_template(text));
      ++known;
    }
    CHECK(known == 20);
    CHECK(!fsdp::recognise_template(""));
  }

  TEST_CASE("python_strip: what str.isspace() says, and nothing else") {
    CHECK(fsdp::python_strip(
              " \t\n\v\f\r\x1c\x1d\x1e\x1f\u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000a") == "a");
    CHECK(fsdp::python_strip("a b \u00a0\n") == "a b");
    CHECK(fsdp::python_strip("\u200ba\ufeff") == "\u200ba\ufeff");
    CHECK(fsdp::python_strip(" \n ").empty());
    CHECK(fsdp::python_strip("").empty());
  }

  TEST_CASE("find_chat_template: the marks' names are the tokenizer's, else the usual ones") {
    const fsdp::test::TempDir dir;
    const auto chat = fsdp::find_chat_template("llama2", dir.path().string());
    CHECK(chat.bos == "<s>");
    CHECK(chat.eos == "</s>");
    fsdp::replace_file(dir / "tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>"})");
    CHECK(fsdp::find_chat_template("mistral", dir.path().string()).bos == "<b>");
    CHECK(fsdp::find_chat_template("mistral", dir.path().string()).eos == "<e>");
    CHECK_THROWS_WITH_AS(fsdp::find_chat_template("", "gpt2"),
                         doctest::Contains("has no chat template of its own: did you forget --model"),
                         fsdp::UsageError);
    CHECK_THROWS_WITH_AS(fsdp::find_chat_template("", dir.path().string()), doctest::Contains("of its own; name one"),
                         fsdp::UsageError);
  }
}
