#include "lib/templates/chat/chat_template.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/templates/chat/conversation_encoder.hpp"
#include "tests/support/chat_fixture.hpp"
#include "tests/support/temp_files.hpp"

namespace {

using Json = nlohmann::ordered_json;

const std::string kChat = FSDP_FIXTURE_DIR "/chat/";

Json expected_templates() { return Json::parse(fsdp::read_text_file(kChat + "expected.json")).at("templates"); }

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string render_all(const fsdp::ChatTemplate& chat, const fsdp::Conversation& conversation,
                       fsdp::NextTurn next = fsdp::NextTurn::none) {
  return chat.render(conversation, conversation.messages.size(), next).text;
}

/// Where the character with this number begins.
std::size_t byte_at(const std::string& text, std::size_t character) {
  std::size_t at = 0;
  for (; character > 0; --character) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  }
  return at;
}

}  // namespace

TEST_SUITE("chat/chat_template") {
  TEST_CASE("forty templates on twelve conversations as transformers renders them") {
    int rendered = 0, refused = 0, marked = 0;
    for (const auto& name : fsdp::test::chat_templates()) {
      const auto truth = fsdp::test::jinja_fixture(name + ".json");
      const auto owner = fsdp::test::fixture_template(name, truth);
      const auto& chat = *owner;
      for (const auto& result : truth["results"]) {
        const auto conversation = fsdp::test::conversation_named(result["conversation"]);
        for (const auto next : {fsdp::NextTurn::none, fsdp::NextTurn::assistant}) {
          CAPTURE(name);
          CAPTURE(result["conversation"].get<std::string>());
          const auto* key = next == fsdp::NextTurn::none ? "off" : "on";
          if (result.contains(key) && result[key].is_object()) {
            CHECK_THROWS_AS(render_all(chat, conversation, next), fsdp::FormatError);
            ++refused;
            continue;
          }
          const auto wanted = result.contains(key)
                                  ? result[key].get<std::string>()
                                  : result["off"].get<std::string>() + result["on_adds"].get<std::string>();
          const auto text = chat.render(conversation, conversation.messages.size(), next);
          CHECK(text.text == wanted);
          ++rendered;
          if (next == fsdp::NextTurn::assistant || !result.contains("generation_spans")) continue;
          REQUIRE(text.marked.size() == result["generation_spans"].size());
          for (std::size_t i = 0; i < text.marked.size(); ++i, ++marked) {
            CHECK(text.marked[i].begin == byte_at(wanted, result["generation_spans"][i][0]));
            CHECK(text.marked[i].end == byte_at(wanted, result["generation_spans"][i][1]));
          }
        }
      }
    }
    CHECK(rendered == 808);
    CHECK(refused == 152);
    CHECK(marked == 126);
  }

  TEST_CASE("what an answer adds, without marks of the template") {
    int found = 0, ambiguous = 0;
    for (const auto& name : fsdp::test::chat_templates()) {
      const auto truth = fsdp::test::jinja_fixture(name + ".json");
      const auto owner = fsdp::test::fixture_template(name, truth);
      const auto& chat = *owner;
      if (chat.marks_answers()) continue;
      for (const auto& result : truth["results"]) {
        if (!result.contains("incremental")) continue;
        auto conversation = fsdp::test::conversation_named(result["conversation"]);
        const auto whole = chat.render(conversation, conversation.messages.size(), fsdp::NextTurn::none);
        for (const auto& one : result["incremental"]) {
          CAPTURE(name);
          CAPTURE(result["conversation"].get<std::string>());
          const std::size_t message = one["message"];
          conversation.is_answer.assign(conversation.messages.size(), false);
          conversation.is_answer[message] = true;
          if (one.contains("span")) {
            const auto answers = fsdp::find_answers(chat, conversation, whole);
            REQUIRE(answers.size() == 1);
            CHECK(answers[0].begin == byte_at(whole.text, one["span"][0]));
            CHECK(answers[0].end == byte_at(whole.text, one["span"][1]));
            ++found;
          } else if (message > 0) {  // many templates render no messages at all, too
            CHECK_THROWS_WITH_AS(fsdp::find_answers(chat, conversation, whole), doctest::Contains("ambiguous"),
                                 fsdp::FormatError);
            ++ambiguous;
          }
        }
      }
    }
    CHECK(found == 468);
    CHECK(ambiguous == 164);
  }

  TEST_CASE("named templates write what Jinja writes of the makers' wording, and so do those of models on the Hub") {
    const auto lines = lines_of(kChat + "messages.jsonl");
    int rendered = 0;
    const auto templates = expected_templates();
    const fsdp::test::TempDir dir;
    for (const auto& file : std::filesystem::directory_iterator(kChat + "templates")) {
      const auto stem = file.path().stem().string(), name = stem.substr(0, stem.find('-'));
      const auto& truth = templates[name];
      std::map<std::string, std::string> tokens{{"eos_token", truth["eos"]}};
      if (!truth["bos"].is_null()) tokens["bos_token"] = truth["bos"];
      Json config(tokens);
      fsdp::replace_file(dir / "tokenizer_config.json", config.dump());
      const auto named = fsdp::find_chat_template(name, dir.path().string());
      const auto own = fsdp::find_chat_template(file.path().string(), dir.path().string());
      for (const auto& conversation : truth["conversations"]) {
        CAPTURE(stem);
        CAPTURE(conversation["index"].get<std::size_t>());
        const auto record = Json::parse(lines.at(conversation["index"]));
        for (const auto& chat : {named, own}) {
          if (conversation.contains("error")) {
            CHECK_THROWS_AS(render_all(*chat, fsdp::read_conversation(record, "messages")), fsdp::FormatError);
            continue;
          }
          CHECK(render_all(*chat, fsdp::read_conversation(record, "messages")) ==
                conversation["text"].get<std::string>());
          ++rendered;
        }
      }
    }
    CHECK(rendered == 264);
  }

  TEST_CASE("find_chat_template: where it is looked for, and the tokens' names") {
    const fsdp::test::TempDir dir;
    const auto one = [](const fsdp::ChatTemplate& chat) {
      fsdp::Conversation conversation;
      conversation.messages = Json::array({Json{{"role", "user"}, {"content", "Q"}}});
      return render_all(chat, conversation);
    };
    CHECK(one(*fsdp::find_chat_template("llama2", dir.path().string())) == "<s>[INST] Q [/INST]");
    fsdp::replace_file(dir / "tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>",
        "image_token": "<i>", "extra_special_tokens": {"odd_token": "<o>"},
        "chat_template": [{"name": "tool_use", "template": "x"},
                          {"name": "default", "template": "{{ bos_token ~ eos_token ~ image_token ~ odd_token ~ pad_token }}"}]})");
    CHECK(one(*fsdp::find_chat_template("mistral", dir.path().string())) == "<b>[INST] Q [/INST]");
    const fsdp::test::TempDir null;
    fsdp::replace_file(null / "tokenizer_config.json", R"({"bos_token": null})");
    CHECK_THROWS_WITH_AS(one(*fsdp::find_chat_template("llama2", null.path().string())),
                         doctest::Contains("'bos_token' is undefined"), fsdp::FormatError);
    for (const auto* own : {"", "auto", fsdp::kOwnTemplate}) {
      const auto chat = fsdp::find_chat_template(own, dir.path().string());
      CHECK(one(*chat) == "<b><e><i><o>");
      CHECK(chat->name() == fsdp::kOwnTemplate);
    }
    fsdp::replace_file(dir / "chat_template.jinja", "jinja\r\n");
    CHECK(one(*fsdp::find_chat_template("", dir.path().string())) == "jinja");
    CHECK(one(*fsdp::find_chat_template((dir / "tokenizer_config.json").string(), "gpt2")).empty());
    fsdp::replace_file(dir / "chat_template.jinja", "a\n{% if %}");
    CHECK_THROWS_WITH_AS(fsdp::find_chat_template("", dir.path().string()),
                         doctest::Contains("chat_template.jinja: the chat template is not readable: line 2: "),
                         fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::find_chat_template("", "gpt2"), doctest::Contains("has no chat template of its own"),
                         fsdp::RequestError);
    // Only what the tokenizer has tokens for is offered.
    CHECK_THROWS_WITH_AS(fsdp::find_chat_template("", "gpt2"), doctest::Contains("has no chat template of its own"),
                         fsdp::RequestError);
    try {
      fsdp::find_chat_template("", "gpt2");
    } catch (const fsdp::RequestError& error) {
      CHECK(std::string(error.what()).find("chatml") == std::string::npos);
    }
    const fsdp::test::TempDir empty;
    CHECK_THROWS_WITH_AS(fsdp::find_chat_template("", empty.path().string()), doctest::Contains("of its own"),
                         fsdp::RequestError);
  }

  TEST_CASE("find_chat_template: of several templates default, and tool_use for conversations with tools") {
    const fsdp::test::TempDir dir;
    const auto texts = [&](const std::string& asked = "") {
      const auto chat = fsdp::find_chat_template(asked, dir.path().string());
      fsdp::Conversation conversation;
      conversation.messages = Json::array({Json{{"role", "user"}, {"content", "Q"}}});
      const auto text = [&] { return render_all(chat->for_conversation(conversation), conversation); };
      const auto without = text();
      conversation.variables["tools"] = Json::array();
      return without + " " + text();
    };
    const std::string
        list = R"([{"name": "tool_use", "template": "list tools"}, {"name": "default", "template": "list"}])",
        object = R"({"rag": "object rag", "tool_use": "object tools", "default": "object"})";
    for (const auto& [templates, wanted] : {std::pair(list, "list list tools"), {object, "object object tools"}}) {
      fsdp::replace_file(dir / "tokenizer_config.json", "{\"chat_template\": " + templates + "}");
      CHECK(texts() == wanted);
      CHECK(texts((dir / "tokenizer_config.json").string()) == wanted);
      CHECK(texts(dir.path().string()) == wanted);
    }
    std::filesystem::create_directory(dir / "additional_chat_templates");
    fsdp::replace_file(dir / "additional_chat_templates/tool_use.jinja", "file tools");
    CHECK_THROWS_WITH_AS(fsdp::find_chat_template("", dir.path().string()),
                         doctest::Contains("has templates, and none that is called default"), fsdp::FormatError);
    fsdp::replace_file(dir / "chat_template.jinja", "file");
    CHECK(texts() == "file file tools");
    fsdp::replace_file(dir / "additional_chat_templates/tool_use.jinja", "{% if %}");
    CHECK_THROWS_WITH_AS(
        fsdp::find_chat_template("", dir.path().string()),
        doctest::Contains("additional_chat_templates/tool_use.jinja: the chat template is not readable"),
        fsdp::FormatError);
    std::filesystem::remove(dir / "additional_chat_templates/tool_use.jinja");
    CHECK(texts() == "file file");
  }

  TEST_CASE("words of a template, and whether it reads parts") {
    const fsdp::ChatTemplate chat("t", "{{ messages[0].tools_x }}{{ tool }}", {});
    CHECK(chat.mentions("tool"));
    CHECK(!chat.mentions("tools"));
    CHECK(!chat.reads_parts());
    CHECK(fsdp::ChatTemplate("t", "{% for p in messages[0].content %}{{ p.text }}{% endfor %}", {}).reads_parts());
    CHECK(!fsdp::ChatTemplate("t", "{{ messages[0].content }}", {}).reads_parts());
  }
}
