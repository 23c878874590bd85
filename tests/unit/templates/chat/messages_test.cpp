#include "lib/templates/chat/messages.hpp"

#include <doctest/doctest.h>

#include <string>

#include "lib/base/types/error.hpp"

namespace {

using Message = nlohmann::ordered_json;

fsdp::Conversation read_one(const Message& message) {
  return fsdp::read_conversation({{"messages", Message::array({message})}}, "messages");
}

}  // namespace

TEST_SUITE("chat/messages") {
  TEST_CASE("media are refused by their key, unless they say nothing") {
    for (const auto* key : {"images", "image", "audio", "audios", "video", "videos"}) {
      CAPTURE(key);
      Message message{{"role", "assistant"}, {"content", "a"}};
      for (const auto& nothing : {Message(), Message(""), Message::array(), Message::object()}) {
        message[key] = nothing;
        CHECK(read_one(message).messages.size() == 1);
      }
      message[key] = Message::array({"x"});
      CHECK_THROWS_WITH_AS(read_one(message), doctest::Contains(("message 1 has '" + std::string(key)).c_str()),
                           fsdp::FormatError);
    }
  }

  TEST_CASE("keys that say what is learned; what they cannot say exactly is refused, and the weight told") {
    Message message{{"role", "assistant"}, {"content", "a"}, {"train", true}, {"name", "bob"}};
    CHECK(read_one(message).is_answer == std::vector<bool>{true});
    message["train"] = false;
    CHECK(read_one(message).is_answer == std::vector<bool>{false});
    message["train"] = 0.5;
    CHECK_THROWS_WITH_AS(read_one(message), doctest::Contains("a train other than 0 and 1"), fsdp::FormatError);
    message["train"] = nullptr;
    message["train_detail"] = Message::array({1});
    CHECK_THROWS_WITH_AS(read_one(message), doctest::Contains("'train_detail', which is not read: \"weight\": 0"),
                         fsdp::FormatError);
  }

  TEST_CASE("beside the messages: media, tools as a list or as JSON") {
    const auto user = Message::array({Message{{"role", "user"}, {"content", "a"}}});
    for (const auto* key : fsdp::kUnsaidBeside) {
      CHECK_NOTHROW(fsdp::refuse_unsaid({{key, Message()}, {"id", 1}}));
      CHECK_THROWS_WITH_AS(fsdp::refuse_unsaid({{key, {"a.png"}}}), doctest::Contains(key), fsdp::FormatError);
    }
    const auto tools_of = [&](const Message& tools) {
      return fsdp::read_conversation({{"messages", user}, {"tools", tools}}, "messages").variables["tools"];
    };
    for (const auto& none : {Message(), Message("null"), Message(""), Message::object()})
      CHECK(tools_of(none).is_null());
    for (const auto& empty : {Message("[]"), Message::array()}) CHECK(tools_of(empty) == Message::array());
    CHECK_THROWS_WITH_AS(fsdp::read_conversation({{"messages", user}, {"tools", "f(x)"}}, "messages"),
                         doctest::Contains("'tools' holds a string, expected a list"), fsdp::FormatError);
  }

  TEST_CASE("keys that are null, and what a message thinks, as transformers gives them") {
    const Message messages = Message::parse(R"([{"weight": 1, "role": "user", "content": "a", "name": null},
        {"role": "assistant", "reasoning": "r", "content": null, "tool_calls": [1]}])");
    CHECK(
        fsdp::as_templates_read(messages).dump() ==
        R"([{"role":"user","content":"a"},{"thinking":"r","role":"assistant","reasoning":"r","tool_calls":[1],"reasoning_content":"r"}])");
  }

  TEST_CASE("a message needs a content, or something else that it says") {
    CHECK_NOTHROW(read_one(Message::parse(R"({"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]})")));
    CHECK_THROWS_WITH_AS(read_one(Message::parse(R"({"role": "assistant", "content": null})")),
                         doctest::Contains("null"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(read_one(Message::parse(R"({"role": "assistant"})")), doctest::Contains("no 'content'"),
                         fsdp::FormatError);
  }

  TEST_CASE("ShareGPT: a name that is not known stays, for the encoder to refuse as a role") {
    const auto record =
        Message::parse(R"({"conversations": [{"from": "human", "value": "a"}, {"from": "bing", "value": "b"},
        {"from": "ipython", "value": "c"}]})");
    const auto read = fsdp::read_conversation(record, "messages");
    CHECK(read.messages[1]["role"] == "bing");
    CHECK(read.messages[2]["role"] == "ipython");
    CHECK(read.is_answer == std::vector<bool>{false, false, false});
  }

  TEST_CASE("ShareGPT: calls and what a tool answers") {
    const auto record = Message::parse(R"({"conversations": [{"from": "human", "value": "a"},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"z\": 1}}"},
        {"from": "observation", "value": "2"}, {"from": "gpt", "value": "b", "weight": 0}], "tools": "[{\"name\": \"f\"}]"})");
    const auto read = fsdp::read_conversation(record, "messages");
    CHECK(read.messages.dump() ==
          R"([{"role":"user","content":"a"},)"
          R"({"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"z":1}}}]},)"
          R"({"role":"tool","content":"2"},{"role":"assistant","content":"b"}])");
    CHECK(read.is_answer == std::vector<bool>{false, true, false, false});
    CHECK(read.variables["tools"].size() == 1);
    auto broken = record;
    broken["conversations"][1]["value"] = "f(1)";
    CHECK_THROWS_WITH_AS(fsdp::read_conversation(broken, "messages"),
                         doctest::Contains("'function_call' that is no JSON"), fsdp::FormatError);
  }
}
