// A conversation with a random minGPT, whose template writes "role: content" lines.
#include "lib/training/evaluate/chat_session.hpp"

#include <ATen/core/grad_mode.h>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/step/initialize.hpp"
#include "tests/support/small_model.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/torch_doctest.hpp"

using namespace fsdp;

namespace {

class Chat {
 public:
  Chat(ProcessGroup& world, std::int64_t positions, std::int64_t num_tokens)
      : world_(world), tokenizer_(open_tokenizer(kBuiltInTokenizer)), runtime_(world, config(positions), {}, {}, 1) {
    initialize_parameters(runtime_, 3);
    runtime_.engine().sync_parameters();
    const test::TempDir folder;
    replace_file(folder / "chat_template.jinja",
                 "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                 "{% if add_generation_prompt %}assistant:{% endif %}");
    ConversationOptions conversations;
    conversations.chat_template = (folder / "chat_template.jinja").string();
    SamplingOptions sampling;
    sampling.temperature = 0;
    sampling.num_tokens = num_tokens;
    session_.emplace(runtime_, *tokenizer_, ChatPrompts(*tokenizer_, kBuiltInTokenizer, conversations, {}), sampling);
  }

  /// \param tokens  after which rank 0 is interrupted
  ChatAnswer ask(const std::string& user, int tokens = 1000) {
    std::string shown;
    auto answer = session_->ask(
        user, [&](const std::string& text) { shown += text; }, [&] { return --tokens <= 0; });
    CHECK(shown == answer.text);
    return answer;
  }
  ChatSession& session() { return *session_; }
  std::string seen(const ChatAnswer& answer) const { return tokenizer_->decode(answer.prompt); }

 private:
  static ModelConfig config(std::int64_t positions) {
    auto config = test::small_model();
    config.vocab_size = 50257;
    config.block_size = positions;
    return config;
  }

  ProcessGroup& world_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ModelRuntime runtime_;
  std::optional<ChatSession> session_;
};

}  // namespace

TEST_SUITE("eval/chat session") {
  TEST_CASE("turns, an answer that is interrupted, the system message, and what reset() leaves, on 1 and 2 ranks") {
    for (const int ranks : {1, 2}) {
      CAPTURE(ranks);
      run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
        const at::NoGradGuard no_grad;
        Chat chat(world, 200, 8);
        const auto first = chat.ask("Hi");
        CHECK(chat.seen(first) == "user: Hi\nassistant:");
        CHECK(first.ended == "length");
        CHECK(first.ids.size() == 8);
        const auto second = chat.ask("More", 3);
        CHECK(chat.seen(second) == "user: Hi\nassistant: " + first.text + "\nuser: More\nassistant:");
        CHECK(second.ended == "interrupted");
        CHECK(second.ids.size() == 3);
        chat.session().set_system("Be brief.");
        const auto third = chat.ask("Why");
        CHECK(chat.seen(third) ==
              "system: Be brief.\n" + chat.seen(second) + " " + second.text + "\nuser: Why\nassistant:");
        chat.session().reset();
        CHECK(chat.seen(chat.ask("Hi")) == "system: Be brief.\nuser: Hi\nassistant:");
        chat.session().set_system({});
        chat.session().reset();
        CHECK(chat.ask("Hi").ids == first.ids);
      });
    }
  }

  TEST_CASE("the oldest turns make room for the answer, and a message without room changes nothing") {
    const auto world = make_single_group();
    const at::NoGradGuard no_grad;
    Chat chat(*world, 64, 1000);
    chat.session().set_system("Stay");
    const auto first = chat.ask("one");
    CHECK(first.ended == "context");
    CHECK(first.prompt.size() + first.ids.size() == 64);
    const auto second = chat.ask("two", 2);
    CHECK(second.forgotten == 2);
    CHECK(chat.seen(second) == "system: Stay\nuser: two\nassistant:");
    std::string words;
    for (int i = 0; i < 60; ++i) words += " word";
    try {
      chat.ask(words);
      FAIL("64 positions have no room for it");
    } catch (const FormatError& error) {
      CHECK(std::string(error.what()).find("64") != std::string::npos);
    }
    const auto third = chat.ask("three", 1);
    CHECK(third.forgotten == 0);
    CHECK(chat.seen(third) == chat.seen(second) + " " + second.text + "\nuser: three\nassistant:");
  }
}
