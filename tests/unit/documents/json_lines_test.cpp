#include <unistd.h>
#include "lib/documents/documents.hpp"

#include <fstream>

#include "tests/unit/documents/corpus_support.hpp"

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

  TEST_CASE("a list of objects is read element by element, however it is laid out") {
    TempDir dir;
    const std::string one = R"({"text": "a ] } , \" [ { \\", "id": [1, {"x": "]"}]})", two = R"({"text":["b","c"]})";
    const Texts expected{"a ] } , \" [ { \\", "b c"};
    for (const auto& list : {"[" + one + "," + two + "]", "\xef\xbb\xbf \n[ " + one + " ,\n\n" + two + "\n]\n\n",
                             "[\n" + one + "\n,\r\n" + two + "\r\n]\t"}) {
      CHECK(read_content(dir, "a.json", list) == expected);
      CHECK(read_content(dir, "a.jsonl", list) == expected);
    }
    CHECK(read_content(dir, "a.json", "[{\"text\":\n \"a\",\n \"score\": NaN}]") == Texts{"a"});
    CHECK(read_content(dir, "a.json", " [\n]").empty());
    const auto long_text = std::string(std::size_t{3} << 20, '"');
    std::string escaped;
    for (const char c : long_text) escaped += std::string("\\") + c;
    CHECK(read_content(dir, "a.json", "[{\"text\": \"" + escaped + "\"}," + two + "]") == Texts{long_text, "b c"});
    CHECK(fsdp::detail::first_json_keys(dir / "a.json") == std::vector<std::string>{"text"});
  }

  TEST_CASE("what is malformed in a list is named with its element and byte") {
    TempDir dir;
    const auto message = [&](const std::string& list) {
      const auto text = refusal(dir, "a.json", list), begin = (dir / "a.json").string() + ": ";
      CHECK(text.starts_with(begin));
      return text.substr(std::min(text.size(), begin.size()));
    };
    CHECK(
        message("[{\"text\": \"fine\"},\n {\"body\": \"b\"}]").starts_with("element 2 at byte 20: has no key 'text'"));
    CHECK(message("[{\"text\": \"fine\"}, {\"text\": 5}]").starts_with("element 2 at byte 19: 'text' holds a number"));
    CHECK(message("[{\"text\":\n oops}]").starts_with("element 1 at byte 1: is no JSON, line 2, column 2: "));
    CHECK(message("[5]").starts_with("element 1 at byte 1: holds a number, expected an object"));
    CHECK(message("[{\"text\": \"a\"}, {\"te").starts_with("element 2 at byte 16: the list ends early"));
    CHECK(message("[{\"text\": \"a\"}").starts_with("element 1 at byte 1: the list ends early"));
    CHECK(message("[{\"text\": \"a\"}, ]").starts_with("byte 16: a comma is followed by no element"));
    CHECK(
        message("[{\"text\": \"a\"}] {\"text\": \"b\"}").starts_with("byte 16: something follows the end of the list"));
    CHECK(message("[{\"text\": \"a\"}}]").starts_with("byte 14: is a '}' that closes nothing"));
  }

  TEST_CASE("an object that holds the list is refused with its key; JSON Lines of such objects are not") {
    TempDir dir;
    for (const std::string object : {R"({"data": [{"text": "a"}]})",
                                     "{\"version\": \"1\", \"notes\": [\"x\"],\n\"data\":\n[{\"text\": \"a\"}]}"}) {
      const auto text = refusal(dir, "a.json", object);
      CHECK(text.find("a.json: is one object that holds a list of objects at 'data'") != std::string::npos);
      CHECK(text.find("jq '.[\"data\"]' a.json") != std::string::npos);
    }
    CHECK(refusal(dir, "a.json", "{\"data\": [{\"text\": \"a\"}]}\n{\"data\": []}")
              .find("has no key 'text', only 'data'") != std::string::npos);
    CHECK(refusal(dir, "a.json", "{\"text\":\n\"a\"}").find("line 1: is no JSON") != std::string::npos);
    CHECK(read_content(dir, "a.json", R"({"text": "a", "parts": [{"x": 1}]})") == Texts{"a"});
    CHECK(refusal(dir, "a.txt", "[ {\n\"text\": \"a\"}]").find("begins with a JSON object") != std::string::npos);
  }

  TEST_CASE("a sample of another form than the first is named with both places") {
    TempDir dir;
    const std::string chat = R"({"messages": [{"role": "user", "content": "a"}]})",
                      pair = R"({"prompt": "a", "completion": "b"})";
    CHECK(refusal(dir, "a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n" + chat) ==
          (dir / "a.jsonl").string() + ": line 4 is a conversation, line 1 a text: one form per file");
    CHECK(refusal(dir, "a.json", "[{\"text\": \"a\"}," + pair + "]") ==
          (dir / "a.json").string() +
              ": element 2 at byte 15 is a prompt with a completion, element 1 at byte 1 a text: one form per file");
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

  TEST_CASE("zstd: a frame may claim a window of 128 MiB, which takes no memory that it does not fill") {
    TempDir dir;
    using namespace std::string_literals;
    // A frame without its size: a byte for the window (RFC 8878, 3.1.1.1.2), and one block that is stored as it is.
    const auto frame = [](int window_log) {
      const std::string text = "{\"text\": \"a\"}\n";
      return "\x28\xb5\x2f\xfd\0"s + static_cast<char>((window_log - 10) << 3) +
             static_cast<char>(text.size() * 8 + 1) + "\0\0"s + text;
    };
    for (const int most : {28, 31, 41}) {
      CAPTURE(most);
      const auto said = refusal(dir, "a.jsonl.zst", frame(most));
      CHECK(said.find("a.jsonl.zst") != std::string::npos);
      CHECK(said.find("128 MiB") != std::string::npos);
      CHECK(said.find("zstd -d --long=31") != std::string::npos);
      CHECK(said.find("damaged") == std::string::npos);
    }
    const auto memory_bytes = [] {
      std::size_t pages = 0, resident = 0;
      std::ifstream("/proc/self/statm") >> pages >> resident;
      return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    };
    const auto file = dir / "b.jsonl.zst";
    fsdp::File::create(file).write(frame(27));
    const auto documents = fsdp::open_documents(file, "");
    const auto before = memory_bytes();
    std::string text;
    CHECK(documents->next(text));
    CHECK(text == "a");
    CHECK(memory_bytes() < before + (std::size_t{16} << 20));
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
    CHECK(second("{}") == "has no key 'text', it is empty");
    CHECK(second("{\"a\": {\"text\": \"x\"}, \"b\": 1}") == "has no key 'text', only 'a', 'b'");
    CHECK(refusal(dir, "b.jsonl", "{\"body\": \"x\"}\n{\"body\": \"y\"}\n")
              .starts_with((dir / "b.jsonl").string() + ": line 1: has no key 'text', only 'body'"));
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
