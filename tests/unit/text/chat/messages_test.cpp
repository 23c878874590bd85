#include "lib/text/chat/messages.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/error.hpp"

using nlohmann::json;

TEST_SUITE("chat/messages") {
  TEST_CASE("what a template would write beside the content is refused by its key, unless it says nothing") {
    for (const auto* key : {"tool_calls", "function_call", "reasoning", "reasoning_content", "thinking", "images",
                            "image", "audio", "videos", "refusal"}) {
      CAPTURE(key);
      json message{{"role", "assistant"}, {"content", "a"}};
      for (const auto& nothing : {json(), json(""), json::array(), json::object()}) {
        message[key] = nothing;
        CHECK(fsdp::read_messages(json::array({message}), "messages").size() == 1);
      }
      message[key] = json{"x"};
      CHECK_THROWS_WITH_AS(fsdp::read_messages(json::array({message}), "messages"),
                           doctest::Contains(("message 1 has '" + std::string(key)).c_str()), fsdp::FormatError);
    }
  }

  TEST_CASE("another way to say what is learned is refused, and its weight told") {
    json message{{"role", "assistant"}, {"content", "a"}, {"train", true}, {"name", "bob"}};
    CHECK(fsdp::read_messages(json::array({message}), "messages").front().counts);
    message["train"] = false;
    CHECK_THROWS_WITH_AS(fsdp::read_messages(json::array({message}), "messages"), doctest::Contains("'train'"),
                         fsdp::FormatError);
  }

  TEST_CASE("beside the messages: tools and media") {
    for (const auto* key : fsdp::kUnsaidBeside) {
      CHECK_NOTHROW(fsdp::refuse_unsaid({{key, json()}, {"id", 1}}));
      CHECK_NOTHROW(fsdp::refuse_unsaid({{key, json::array()}}));
      CHECK_THROWS_WITH_AS(fsdp::refuse_unsaid({{key, {"a.png"}}}), doctest::Contains(key), fsdp::FormatError);
    }
  }
}
