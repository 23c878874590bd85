#include "lib/text/sources/documents.hpp"
#include "tests/unit/text/sources/corpus_support.hpp"

using namespace fsdp::test;

TEST_SUITE("corpus/json_lines") {
  TEST_CASE("strings, lists of strings, null, escapes, empty lines, a byte-order mark and no last line end") {
    TempDir dir;
    CHECK(read_content(dir, "a.jsonl",
                       "\xef\xbb\xbf{\"text\": \"one\"}\r\n"
                       "\n  \t\r\n"
                       "{\"id\": [1, {\"text\": \"inner\"}], \"text\": [\"e2e4\", \"e7e5\"], \"more\": {\"text\": 5}}\n"
                       "{\"text\": null}\n"
                       "{\"text\": []}\n"
                       "{\"text\": \"\"}\n"
                       "{\"text\": \"a\\n\\u00e9\\ud83d\\ude00\"}") ==
          Texts{"one", "e2e4 e7e5", "", "", "", "a\n\xc3\xa9\xf0\x9f\x98\x80"});
  }

  TEST_CASE("another field; of a key that comes twice the last counts") {
    TempDir dir;
    CHECK(read_content(dir, "a.jsonl", R"({"text": "a", "content": "b", "content": "c"})", "content") == Texts{"c"});
    CHECK(read_content(dir, "a.jsonl", R"({"text": "a", "text": null})") == Texts{""});
    CHECK(fsdp::detail::first_json_keys(dir / "a.jsonl") == std::vector<std::string>{"text"});
  }

  TEST_CASE("what Python writes beyond JSON counts only in the key that is read") {
    TempDir dir;
    CHECK(read_content(
              dir, "a.jsonl",
              "{\"score\": NaN, \"text\": \"a\"}\n"
              "{\"text\": \"NaN 1e999 \\\" Infinity\", \"x\": [-Infinity, {\"y\": 1e999}], \"z\": 1e-999}\n"
              "{\"id\": \"\\ud83d\", \"text\": \"\\ud83d\\ude00\", \"\\udc00\": \"\\udc00\\ud800\\\\ud800\"}\n") ==
          Texts{"a", "NaN 1e999 \" Infinity", "\xf0\x9f\x98\x80"});
    const auto second = [&](const std::string& value) {
      return refusal(dir, "a.jsonl", "{\"text\": \"fine\"}\n{\"text\": " + value + "}\n");
    };
    for (const auto* number : {"NaN", "-Infinity", "1e999"})
      CHECK(second(number).find("line 2: 'text' holds a number") != std::string::npos);
    CHECK(second("\"a\\ud800b\"").find("line 2: 'text' holds half of a surrogate pair") != std::string::npos);
    CHECK(second("[\"\\udc00\\ud800\"]").find("line 2: 'text' holds half of a surrogate pair") != std::string::npos);
    CHECK(second("\"a\", \"b\": NaNa").find("line 2: is no JSON, column") != std::string::npos);
    CHECK(second("\"a\", \"b\": nan").find("line 2: is no JSON, column") != std::string::npos);
  }

  TEST_CASE("zstd: frames to be skipped stand anywhere") {
    TempDir dir;
    using namespace std::string_literals;
    // A frame of one block that is stored as it is. Source: RFC 8878
    const auto frame = [](const std::string& text) {
      const auto size = static_cast<char>(text.size());
      return "\x28\xb5\x2f\xfd\x20"s + size + static_cast<char>(size * 8 + 1) + "\0\0"s + text;
    };
    const auto skipped = [](char last, const std::string& text) {
      return last + "\x2a\x4d\x18"s + static_cast<char>(text.size()) + "\0\0\0"s + text;
    };
    const auto one = frame("{\"text\": \"a\"}\n"), two = frame("{\"text\": \"b\"}\n");
    for (const char last : {'\x50', '\x5f'}) {
      const auto notes = skipped(last, "{}\n"), empty = skipped(last, "");
      for (const auto& content : {one + two, notes + one + notes + two, empty + one + two, one + empty + two + notes})
        CHECK(read_content(dir, "a.jsonl.zst", content) == Texts{"a", "b"});
      CHECK(read_content(dir, "a.jsonl.zst", notes) == Texts{});
      CHECK(refusal(dir, "a.jsonl.zst", notes.substr(0, 9)).find("ends early") != std::string::npos);
    }
  }

  TEST_CASE("a line of many MB") {
    TempDir dir;
    const std::string long_text(std::size_t{5} << 20, 'x');
    CHECK(read_content(dir, "a.json", "{\"text\": \"" + long_text + "\"}\n{\"text\": \"y\"}\n") ==
          Texts{long_text, "y"});
  }

  TEST_CASE("where() and bytes_read() count lines and bytes of the file") {
    TempDir dir;
    const std::string content = "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n";
    fsdp::replace_file(dir / "a.jsonl", content);
    const auto documents = fsdp::open_documents(dir / "a.jsonl", "");
    std::string text;
    CHECK(documents->next(text));
    CHECK(documents->where() == (dir / "a.jsonl").string() + ": line 1");
    CHECK(documents->bytes_read() == 14);
    CHECK(documents->next(text));
    CHECK(documents->where() == (dir / "a.jsonl").string() + ": line 3");
    CHECK_FALSE(documents->next(text));
    CHECK(documents->bytes_read() == static_cast<std::int64_t>(content.size()));
  }

  TEST_CASE("what is malformed is named with its line") {
    TempDir dir;
    const auto second = [&](const std::string& line) {
      const auto text = refusal(dir, "a.jsonl", "{\"text\": \"fine\"}\n" + line + "\n{\"text\": \"never read\"}\n");
      const auto begin = (dir / "a.jsonl").string() + ": line 2: ";
      CHECK(text.substr(0, begin.size()) == begin);
      return text.substr(std::min(text.size(), begin.size()));
    };
    CHECK(second("{\"text\": \"cut").starts_with("is no JSON, column 14: "));
    CHECK(second("{\"text\": \"a\"} {}").starts_with("is no JSON, "));
    CHECK(second("{\"text\": \"\xff\"}").find("ill-formed UTF-8") != std::string::npos);
    CHECK(second("[\"a\"]") == "holds a list, expected an object with the key 'text'");
    CHECK(second("\"a\"") == "holds a string, expected an object with the key 'text'");
    CHECK(second("7") == "holds a number, expected an object with the key 'text'");
    CHECK(second("{}") ==
          "has no key 'text', it is empty; --data-field names the one to read (of fsdp-download tokens: --field)");
    CHECK(second("{\"a\": {\"text\": \"x\"}, \"b\": 1}") ==
          "has no key 'text', only 'a', 'b'; --data-field names the one to read (of fsdp-download tokens: --field)");
    CHECK(second("{\"text\": 5}") == "'text' holds a number, expected a string or a list of strings");
    CHECK(second("{\"text\": true}") == "'text' holds a truth value, expected a string or a list of strings");
    CHECK(second("{\"text\": {}}") == "'text' holds an object, expected a string or a list of strings");
    CHECK(second("{\"text\": [\"a\", 1.5]}") ==
          "'text' holds a number as an element, expected a string or a list of strings");
    CHECK(second("{\"text\": [\"a\", null]}") == "'text' holds a null element, expected a string or a list of strings");
    CHECK(second("{\"text\": [[\"a\"]]}") == "'text' holds a list of lists, expected a string or a list of strings");
    CHECK(second("{\"text\": [{}]}") == "'text' holds an object as an element, expected a string or a list of strings");
  }
}
