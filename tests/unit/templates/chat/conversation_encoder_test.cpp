#include "lib/templates/chat/conversation_encoder.hpp"

#include <doctest/doctest.h>

#include <string>

#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "tests/support/chat_fixture.hpp"

namespace {

using Record = nlohmann::ordered_json;

const fsdp::Tokenizer& fixture_tokenizer() {
  static const auto tokenizer = fsdp::open_tokenizer(fsdp::test::kJinjaFixtures.string());
  return *tokenizer;
}

fsdp::ConversationEncoder encoder_of(const std::string& source, fsdp::ConversationRules rules = {},
                                     std::map<std::string, std::string> tokens = {{"eos_token", "<|im_end|>"}}) {
  rules.chat = std::make_shared<fsdp::ChatTemplate>("t", source, std::move(tokens));
  return {fixture_tokenizer(), rules};
}

Record message(const std::string& role, const Record& content) { return {{"role", role}, {"content", content}}; }
Record record_of(const Record& messages) { return {{"messages", messages}}; }

/// The text of the ids that are learned.
std::string learned(const fsdp::MaskedIds& sample) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.mask[i] != 0) ids.push_back(sample.ids[i]);
  }
  return fixture_tokenizer().decode(ids);
}

const std::string kPlain =
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

}  // namespace

TEST_SUITE("chat/conversation_encoder") {
  TEST_CASE("ids and masks of templates with generation as transformers gives them, but for what they leave out") {
    int same = 0, refused = 0;
    for (const auto& name : fsdp::test::chat_templates()) {
      const auto truth = fsdp::test::jinja_fixture(name + ".json");
      fsdp::ConversationRules rules;
      for (const auto& result : truth["results"]) {
        if (!result.contains("ids")) continue;
        CAPTURE(name);
        CAPTURE(result["conversation"].get<std::string>());
        rules.chat = fsdp::test::fixture_template(name, truth);
        const fsdp::ConversationEncoder encoder(fixture_tokenizer(), rules);
        const auto conversation = fsdp::test::conversation_named(result["conversation"]);
        Record record = record_of(conversation.messages);
        record["chat_template_kwargs"] = conversation.variables;
        if (conversation.variables.contains("tools")) record["tools"] = conversation.variables["tools"];
        try {
          const auto sample = encoder.encode_messages(record, "messages");
          CHECK(sample.ids == result["ids"].get<std::vector<std::int32_t>>());
          std::vector<std::uint8_t> mask(sample.ids.size(), 0);
          for (const auto& run : result["mask_runs"])
            std::fill(mask.begin() + run[0].get<int>(), mask.begin() + run[1].get<int>(), std::uint8_t{1});
          CHECK(sample.mask == mask);
          ++same;
        } catch (const fsdp::FormatError& error) {
          const std::string what = error.what();
          CAPTURE(what);
          CHECK((what.find("does not write") != what.npos || what.find("is no text") != what.npos));
          const auto text = rules.chat->render(conversation, conversation.messages.size(), fsdp::NextTurn::none).text;
          CHECK(fixture_tokenizer().encode_marked(text, {}).ids == result["ids"].get<std::vector<std::int32_t>>());
          ++refused;
        }
      }
    }
    CHECK(same == 42);
    CHECK(refused == 14);
  }

  TEST_CASE("without generation marks: an answer with its end mark, without the line end behind it") {
    const auto encoder = encoder_of(kPlain);
    const auto chat =
        record_of({message("user", "a"), message("assistant", "b "), message("user", "c"), message("assistant", "d")});
    CHECK(learned(encoder.encode_messages(chat, "messages")) == "b <|im_end|>d<|im_end|>");
    CHECK(encoder.turn_end() == fixture_tokenizer().named_id("<|im_end|>"));
    auto weighted = chat;
    weighted["messages"][1]["weight"] = 0;
    CHECK(learned(encoder.encode_messages(weighted, "messages")) == "d<|im_end|>");
    // A line end is all that such a template ends an answer with.
    const auto lines = encoder_of(
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}");
    CHECK(learned(lines.encode_messages(chat, "messages")).ends_with("d\n"));
    CHECK(!lines.turn_end());
  }

  TEST_CASE("an ambiguous answer is refused, except where all tokens are learned") {
    const std::string thinks =
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ ('<think></think>' if loop.last and m.role == "
        "'assistant')"
        " ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% "
        "endif %}";
    const auto one = record_of({message("user", "a"), message("assistant", "b")});
    const auto two =
        record_of({message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "d")});
    CHECK(learned(encoder_of(thinks).encode_messages(one, "messages")) == "<think></think>b<|im_end|>");
    CHECK_THROWS_WITH_AS(
        encoder_of(thinks).encode_messages(two, "messages"),
        doctest::Contains(
            "message 2 is an answer whose place in the text is ambiguous: the chat template 't' changes it"),
        fsdp::FormatError);
    fsdp::ConversationRules all;
    all.train_on = fsdp::TrainOn::all;
    CHECK(encoder_of(thinks, all).encode_messages(two, "messages").ids.size() > 10);
  }

  TEST_CASE("a weight of 0 under generation marks: answers are told apart by their number") {
    const std::string marked =
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}|{% endfor %}";
    auto chat =
        record_of({message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "d")});
    chat["messages"][3]["weight"] = 0;
    CHECK(learned(encoder_of(marked).encode_messages(chat, "messages")) == "b");
    const std::string twice = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    CHECK_THROWS_WITH_AS(encoder_of(twice).encode_messages(chat, "messages"),
                         doctest::Contains("marks 4 answers where there are 2"), fsdp::FormatError);
  }

  TEST_CASE("edges of masks: a character of several tokens counts whole, answers without text count nothing") {
    const auto truth = fsdp::test::jinja_fixture("mask_edges.json");
    for (const auto& one : truth["cases"]) {
      const std::string name = one["name"];
      CAPTURE(name);
      const auto encoder = encoder_of(one["template"]);
      const auto record = record_of(one["messages"]);
      if (name == "inside_a_macro" || name == "in_a_set_block") {
        CHECK_THROWS_WITH_AS(encoder.encode_messages(record, "messages"), doctest::Contains("generation"),
                             fsdp::FormatError);
        continue;
      }
      const auto sample = encoder.encode_messages(record, "messages");
      CHECK(sample.ids == one["ids"].get<std::vector<std::int32_t>>());
      auto mask = one["mask"].get<std::vector<std::uint8_t>>();
      if (name == "ends_in_a_split_character") mask = {0, 0, 1, 1, 1, 1, 1, 0};
      if (name == "whole_text_is_token_0") mask = {1, 0, 0};
      CHECK(sample.mask == mask);
    }
  }

  TEST_CASE("names of special tokens in messages as plain text") {
    fsdp::ConversationRules plain;
    plain.marks = fsdp::MarksInTexts::plain_text;
    const auto chat = record_of({message("user", " <|im_end|>é<|im_start|>x"), message("assistant", "<|im_end|>")});
    const auto end = fixture_tokenizer().named_id("<|im_end|>").value();
    const auto tokens = encoder_of(kPlain).encode_messages(chat, "messages");
    const auto texts = encoder_of(kPlain, plain).encode_messages(chat, "messages");
    CHECK(std::count(tokens.ids.begin(), tokens.ids.end(), end) == 4);
    CHECK(std::count(texts.ids.begin(), texts.ids.end(), end) == 2);
    CHECK(fixture_tokenizer().decode(texts.ids) == fixture_tokenizer().decode(tokens.ids));
    CHECK(learned(texts) == "<|im_end|><|im_end|>");
    const auto prompt = encoder_of(kPlain, plain).encode_prompt(Record::array({message("user", "<|im_end|>")}));
    CHECK(std::count(prompt.begin(), prompt.end(), end) == 1);
  }

  TEST_CASE("reserved characters stay, and marks beside them stay marks") {
    const auto end = fixture_tokenizer().named_id("<|im_end|>").value();
    for (const auto* text : {"a\ufdd1b", "\ufdd1", "end\ufdd1", "\ufdd0", "\ufffe", "\U00014400", "<|im_end|>\ufdd1",
                             "x\U00014400<|im_end|>", "\\ud811\\udc00<|im_end|>"}) {
      for (const auto marks : {fsdp::MarksInTexts::tokens, fsdp::MarksInTexts::plain_text}) {
        fsdp::ConversationRules rules;
        rules.marks = marks;
        CAPTURE(text);
        const auto chat = record_of({message("user", text), message("assistant", text)});
        const auto sample = encoder_of(kPlain, rules).encode_messages(chat, "messages");
        const bool is_token =
            std::string_view(text).find("<|") != std::string_view::npos && marks == fsdp::MarksInTexts::tokens;
        CHECK(std::count(sample.ids.begin(), sample.ids.end(), end) == (is_token ? 4 : 2));
        CHECK(learned(sample) == text + std::string("<|im_end|>"));
        const auto prompt = encoder_of(kPlain, rules).encode_prompt(Record::array({message("user", text)}));
        CHECK(std::count(prompt.begin(), prompt.end(), end) == (is_token ? 2 : 1));
      }
    }
  }

  TEST_CASE("names of special tokens as plain text where a template writes texts as JSON or as Python does") {
    fsdp::ConversationRules plain;
    plain.marks = fsdp::MarksInTexts::plain_text;
    const auto end = fixture_tokenizer().named_id("<|im_end|>").value();
    for (const auto* written :
         {"m.content | tojson", "m.content | tojson(ensure_ascii=true)", "[m.content]", "m.content | trim"}) {
      CAPTURE(written);
      const auto encoder = encoder_of(std::string("{% for m in messages %}{{ ") + written +
                                          " }}{% generation %}<|im_end|>{% endgeneration %}{% endfor %}",
                                      plain);
      const auto sample =
          encoder.encode_messages(record_of(Record::array({message("user", " <|im_end|> ")})), "messages");
      CHECK(std::count(sample.ids.begin(), sample.ids.end(), end) == 1);
      CHECK(fixture_tokenizer().decode(sample.ids).find("<|im_end|>") != std::string::npos);
      CHECK(fixture_tokenizer().decode(sample.ids).find("ud811") == std::string::npos);
    }
  }

  TEST_CASE("a conversation with a list of tools gets the template for tools") {
    const std::string tools = "{{ tools | tojson }}" + kPlain;
    fsdp::ConversationRules rules;
    rules.chat = std::make_shared<fsdp::ChatTemplate>(
        "t", kPlain, std::map<std::string, std::string>(), fsdp::local_time(),
        std::make_shared<fsdp::ChatTemplate>("tool_use", tools, std::map<std::string, std::string>()));
    const fsdp::ConversationEncoder encoder(fixture_tokenizer(), rules);
    auto chat = record_of({message("user", "a"), message("assistant", "b")});
    const auto text = [&] { return fixture_tokenizer().decode(encoder.encode_messages(chat, "messages").ids); };
    const auto without = text();
    CHECK(without.starts_with("<|im_start|>user"));
    chat["tools"] = Record::array({{{"name", "f"}}});
    CHECK(text() == R"([{"name": "f"}])" + without);
    CHECK(learned(encoder.encode_messages(chat, "messages")) == "b<|im_end|>");
    CHECK(encoder.learns_turn_ends());
  }

  TEST_CASE("templates by which no mark behind an answer counts are known") {
    const auto learns = [](const std::string& source) { return encoder_of(source).learns_turn_ends(); };
    CHECK(learns(kPlain));
    CHECK(
        learns("{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% "
               "endfor %}"));
    CHECK(learns("{{ raise_exception('no') }}"));
    CHECK_FALSE(
        learns("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"));
    CHECK_FALSE(
        learns("{% for m in messages %}{% if m.role == 'user' %}{% if not loop.first %}<|im_end|>{% endif %}[U]"
               "{{ m.content }}{% else %}[A]{{ m.content }}{% endif %}{% endfor %}"
               "{% if add_generation_prompt %}[A]{% endif %}"));
    CHECK_FALSE(
        learns("{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
               "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"));
    fsdp::ConversationRules all;
    all.train_on = fsdp::TrainOn::all;
    CHECK(encoder_of("{% for m in messages %}{{ m.content }}{% endfor %}", all).learns_turn_ends());
  }

  TEST_CASE("an empty completion has an end mark of its own, also where the prompt ends with one") {
    const auto end = fixture_tokenizer().eos_id().value();
    for (const auto pairs : {fsdp::PairEncoding::joint, fsdp::PairEncoding::separate}) {
      fsdp::ConversationRules rules;
      rules.pairs = pairs;
      const fsdp::ConversationEncoder encoder(fixture_tokenizer(), rules);
      for (const auto& prompt : {std::string("Q"), "Q" + fixture_tokenizer().decode_one(end)}) {
        const auto sample = encoder.encode_pair({{"prompt", prompt}, {"completion", ""}});
        const auto marks = std::count(sample.ids.begin(), sample.ids.end(), end);
        CHECK(marks == (prompt == "Q" ? 1 : 2));
        CHECK(sample.ids.back() == end);
        CHECK(std::count(sample.mask.begin(), sample.mask.end(), 1) == 1);
        CHECK(sample.mask.back() == 1);
      }
    }
  }

  TEST_CASE("what the template does not write is refused; what it writes is passed on") {
    auto chat = record_of({message("user", "a"), message("assistant", "b")});
    chat["messages"][1]["tool_calls"] = Record::array({{{"name", "f"}}});
    const auto encoder = encoder_of(kPlain);
    CHECK_THROWS_WITH_AS(encoder.encode_messages(chat, "messages"),
                         doctest::Contains("message 2 has 'tool_calls', which"), fsdp::FormatError);
    CHECK(learned(encoder_of("{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}")
                      .encode_messages(chat, "messages"))
              .find(R"("tool_calls": [{"name": "f"}])") != std::string::npos);
    chat["messages"][1].erase("tool_calls");
    chat["messages"][1]["reasoning"] = "hm";
    CHECK_THROWS_WITH_AS(encoder.encode_messages(chat, "messages"),
                         doctest::Contains("message 2 has 'reasoning', which"), fsdp::FormatError);
    const auto thinking =
        encoder_of("{% generation %}{{ messages[1].thinking ~ messages[1].reasoning_content }}{% endgeneration %}");
    CHECK(learned(thinking.encode_messages(chat, "messages")) == "hmhm");
    chat["messages"][1].erase("reasoning");
    chat["tools"] = R"([{"z": 1, "a": 2}])";
    CHECK_THROWS_WITH_AS(encoder.encode_messages(chat, "messages"), doctest::Contains("has 'tools', which"),
                         fsdp::FormatError);
    const auto tools = encoder_of("{% generation %}{{ tools | tojson }}{{ mode }}{% endgeneration %}");
    chat["chat_template_kwargs"] = {{"mode", "m"}};
    CHECK(learned(tools.encode_messages(chat, "messages")) == R"([{"z": 1, "a": 2}]m)");
  }

  TEST_CASE("roles and parts that the template does not know") {
    const auto encoder = encoder_of(kPlain);
    CHECK_THROWS_WITH_AS(encoder.encode_messages(record_of(Record::array({message("asistant", "a")})), "messages"),
                         doctest::Contains("message 1 has the role 'asistant', expected system, user"),
                         fsdp::FormatError);
    const Record part{{"type", "text"}, {"text", "a"}};
    CHECK(encoder.encode_messages(record_of(Record::array({message("user", Record::array({part}))})), "messages")
              .ids.size() > 3);
    CHECK_THROWS_WITH_AS(
        encoder.encode_messages(record_of(Record::array({message("user", Record::array({part, part}))})), "messages"),
        doctest::Contains("has a content of 2 parts, and the chat template 't' reads strings"), fsdp::FormatError);
    const auto parts =
        encoder_of("{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}");
    CHECK(
        fixture_tokenizer().decode(
            parts.encode_messages(record_of(Record::array({message("user", Record::array({part, part}))})), "messages")
                .ids) == "a|a|");
  }

  TEST_CASE("a mark behind answers must be a token") {
    CHECK_THROWS_WITH_AS(encoder_of("{% for m in messages %}{{ m.content }}<|nowhere|>{% endfor %}"),
                         doctest::Contains("writes the mark '<|nowhere|>' behind an answer"), fsdp::FormatError);
    CHECK(!encoder_of("{% for m in messages %}{{ m.content }}</p>{% endfor %}").turn_end());
  }
}
