#include "lib/documents/data_files.hpp"

#include <sys/stat.h>

#include <tuple>

#include "tests/unit/documents/corpus_support.hpp"

using namespace fsdp::test;
using Paths = std::vector<std::filesystem::path>;

TEST_SUITE("corpus/data_files") {
  TEST_CASE("files stay in their order; a directory gives its data files sorted, hidden ones left out") {
    TempDir dir;
    std::filesystem::create_directories(dir / "set/b/.cache");
    for (const auto* name : {"z.csv", "set/c.parquet", "set/a.parquet", "set/b/d.parquet", "set/b/.cache/e.parquet",
                             "set/.f.parquet", "set/README.md", "set/info.json", "set/notes.txt"}) {
      fsdp::replace_file(dir / name, "x");
    }
    std::filesystem::create_symlink("../z.csv", dir / "set/link.parquet");  // as a snapshot has its files
    CHECK(fsdp::data_files({dir / "z.csv", dir / "set", dir / "z.csv"}) ==
          Paths{dir / "z.csv", dir / "set/a.parquet", dir / "set/b/d.parquet", dir / "set/c.parquet",
                dir / "set/link.parquet", dir / "z.csv"});
  }

  TEST_CASE("one kind a directory: of .json and .txt files only where there is nothing else") {
    TempDir dir;
    fsdp::replace_file(dir / "a.txt", "x");
    CHECK(fsdp::data_files({dir.path()}) == Paths{dir / "a.txt"});
    fsdp::replace_file(dir / "b.json", "x");
    CHECK(fsdp::data_files({dir.path()}) == Paths{dir / "b.json"});
    fsdp::replace_file(dir / "c.jsonl", "x");
    fsdp::replace_file(dir / "d.ndjson", "x");
    CHECK(fsdp::data_files({dir.path()}) == Paths{dir / "c.jsonl", dir / "d.ndjson"});
    fsdp::replace_file(dir / "e.csv", "x");
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir.path()}), doctest::Contains("holds 2 JSON Lines and 1 CSV files"),
                         fsdp::RequestError);
  }

  TEST_CASE("nothing there") {
    TempDir dir;
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir / "none"}), doctest::Contains("none: No such file"), fsdp::MissingInput);
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir.path()}), doctest::Contains("holds no data files"), fsdp::FormatError);
  }

  TEST_CASE("suffixes in any case, and those of JSON Lines, are read") {
    TempDir dir;
    for (const auto* name : {"A.JSONL", "b.jsonlines", "c.JL", "d.NdJson"}) fsdp::replace_file(dir / name, "{}");
    CHECK(fsdp::data_files({dir.path()}).size() == 4);
    CHECK(fsdp::find_data_files({dir.path()}).unread.empty());
  }

  TEST_CASE("a directory: what is not read is told, what describes data apart") {
    TempDir dir;
    for (const auto* name :
         {"a.jsonl", "b.jsonl.tmp", "c.json", "README.md", "LICENSE", "dataset_info.json", ".hidden.jsonl", "readmes"})
      fsdp::replace_file(dir / name, "{}");
    const auto found = fsdp::find_data_files({dir.path()});
    CHECK(found.files == Paths{dir / "a.jsonl"});
    CHECK(found.unread == Paths{dir / "c.json", dir / "b.jsonl.tmp", dir / "readmes"});
    CHECK(found.companions ==
          Paths{dir / ".hidden.jsonl", dir / "LICENSE", dir / "README.md", dir / "dataset_info.json"});
    CHECK(fsdp::file_list(Paths(400, "a")).ends_with(" more"));
  }

  TEST_CASE("a directory with a part of the data that cannot be read is refused by that part's name") {
    const auto refused = [](const std::string& name, const auto& make) {
      TempDir dir;
      fsdp::replace_file(dir / "a.jsonl", "{}");
      make(dir / name);
      CAPTURE(name);
      try {
        fsdp::data_files({dir.path()});
      } catch (const fsdp::Error& error) {
        CHECK(error.code() == fsdp::ExitCode::bad_input);
        CHECK(std::string(error.what()).find(name) != std::string::npos);
        return std::string(error.what());
      }
      return std::string("nothing was refused");
    };
    const auto write = [](const std::filesystem::path& file) { fsdp::replace_file(file, "x"); };
    const auto says = [](const std::string& text, const char* words) { return text.find(words) != text.npos; };
    CHECK(says(refused("b.parquet.gz", write), "gunzip"));
    CHECK(says(refused("B.ZST", write), "zstd -d"));
    CHECK(says(refused("b.tar", write), "tar -xf"));
    CHECK(says(refused("b.orc", write), "ORC"));
    CHECK(says(refused("b.jsonl", [](const auto& file) { std::filesystem::create_symlink("../blobs/b", file); }),
               "../blobs/b"));
    CHECK(says(refused("b.jsonl", [](const auto& file) { ::mkfifo(file.c_str(), 0600); }), "pipe"));
    CHECK(says(refused("x", [](const auto& file) { std::filesystem::create_directory_symlink(".", file); }), "link"));
    CHECK(says(refused("x/b.csv.xz",
                       [&](const auto& file) {
                         std::filesystem::create_directories(file.parent_path());
                         write(file);
                       }),
               "unxz"));
  }

  TEST_CASE("a folder of datasets.save_to_disk: its data, and one split of several") {
    TempDir dir;
    for (const auto* name : {"dataset_info.json", "state.json", "data-00000-of-00001.arrow"})
      fsdp::replace_file(dir / name, "{}");
    fsdp::replace_file(dir / "cache-0123.arrow", "{}");
    const auto found = fsdp::find_data_files({dir.path()});
    CHECK(found.files == std::vector{dir / "data-00000-of-00001.arrow"});
    CHECK(found.unread == std::vector{dir / "cache-0123.arrow"});
    CHECK(found.companions.size() == 2);
    for (const auto* split : {"test", "train"}) {
      std::filesystem::create_directory(dir / split);
      fsdp::replace_file(dir / split / "state.json", "{}");
    }
    fsdp::replace_file(dir / "dataset_dict.json", "{}");
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir.path()}), doctest::Contains("several splits"), fsdp::RequestError);
    std::filesystem::remove(dir / "dataset_dict.json");
    std::filesystem::remove(dir / "cache-0123.arrow");
    std::filesystem::remove(dir / "data-00000-of-00001.arrow");
    CHECK_THROWS_WITH_AS(fsdp::data_files({dir.path()}), doctest::Contains("state.json"), fsdp::FormatError);
  }

  TEST_CASE("data_file_kind: by content, then by name; what is no text is refused") {
    using Kind = fsdp::DataFileKind;
    TempDir dir;
    const auto kind = [&](const char* name, std::string_view content) {
      fsdp::replace_file(dir / name, content);
      return fsdp::data_file_kind(dir / name);
    };
    CHECK(kind("a.jsonl", "{}") == Kind::json_lines);
    CHECK(kind("a.JSON", "{}") == Kind::json_lines);
    CHECK(kind("a.csv", "") == Kind::csv);
    CHECK(kind("a.tsv", "") == Kind::csv);
    CHECK(kind("a.txt", "") == Kind::text);
    CHECK(kind("a", "PAR1....") == Kind::parquet);
    CHECK(kind("a", "PA") == Kind::text);
    CHECK_THROWS_WITH_AS(kind("a.parquet", "PAR0...."), doctest::Contains("is not a Parquet file"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(kind("a.x", "\x1f\x8b\x08"), doctest::Contains("gzip"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(kind("a.jsonl", "\x1f\x8b\x08"), doctest::Contains("ends early"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::data_file_kind(kData / "shakespeare/test.h5"), doctest::Contains("an HDF5 file"),
                         fsdp::FormatError);
    CHECK_THROWS_WITH_AS(fsdp::data_file_kind(dir.path()), doctest::Contains("is a directory"), fsdp::FormatError);
  }

  TEST_CASE("what is no text is refused by the name of its format") {
    using namespace std::string_literals;
    TempDir dir;
    const auto tar = std::string(257, 'a') + "ustar\0"s + "00";
    const std::vector<std::tuple<const char*, std::string, const char*>> files{
        {"a.npy", "\x93NUMPY\x01\0v\0"s, "NumPy"},
        {"a.bin", "\x88\xd8\x34\x01\x01\0\0\0"s, "llm.c"},
        {"a.bin", "\xa1\xd9\x34\x01\x01\0\0\0"s, "llm.c"},
        {"a.bin", "\x05\0\x07\0"s, "raw token ids"},
        {"a.idx", "MMIDIDX\0\0\x01"s, "Megatron"},
        {"a.arrow", "ARROW1\0\0\xff"s, "Arrow"},
        {"a.arrow", "{}"s, "save_to_disk"},
        {"a.feather", "FEA1\0\0"s, "Feather"},
        {"a.orc", "ORC\x0a\0\x12"s, "ORC"},
        {"a.avro", "Obj\x01\x04"s, "Avro"},
        {"a.lz4", "\x04\x22\x4d\x18\x64"s, "lz4 -d"},
        {"a.lz4", "\xf0\x01{\"a\0"s, "lz4 -d"},
        {"a.tar", tar, "tar -xf"},
        {"a.txt", "BZh91AY&SY\x01"s, "bunzip2"},
        {"a.db", "SQLite format 3\0"s, "SQLite"},
        {"a.x", "\x3c\0\0\0\0\0\0\0{\"a\""s, "safetensors"},
        {"a.pkl", "\x80\x04\x95\x10\0\0."s, "pickle"},
        {"a.gguf", "GGUF\x03\0\0\0"s, "GGUF"},
        {"a.tfrecord", "\x05\0\0\0\0\0\0\0\x01hello"s, "TFRecord"},
        {"a.pdf", "%PDF-1.4\n", "PDF"},
        {"a.txt", "\xff\xfet\0h\0"s, "UTF-16"},
        {"a.jsonl", "\xfe\xff\0{"s, "UTF-16"},
        {"a.csv", "\0t\0h\0e\0 \0c"s, "iconv -f UTF-16BE"},
        {"a.jsonl", "{\0\"\0t\0"s, "iconv -f UTF-16LE"},
        {"a.txt", "\xff\xfe\0\0t\0\0\0"s, "UTF-32"},
        {"a.txt", "t\0\0\0h\0\0\0"s, "UTF-32LE"},
        {"a.txt", std::string(1000, '\0'), "at byte 0: is a NUL byte"},
        {"a.txt", "caf\xe9 au lait", "at byte 3: is byte 0xe9"},
        {"a.csv", "text\ncaf\xe9\n", "at byte 8: is byte 0xe9"},
        {"a.txt", "\x50\x41\x52\x45", "encrypted"},
        {"a.txt", "\n {\"text\": \"a\"}\n{\"text\": \"b\"}\n", ".jsonl"},
        {"a", "\xef\xbb\xbf{\"text\": \"a\"}", ".jsonl"}};
    for (const auto& [name, content, words] : files) {
      CAPTURE(words);
      fsdp::replace_file(dir / name, content);
      CHECK_THROWS_WITH_AS(fsdp::data_file_kind(dir / name), doctest::Contains(words), fsdp::FormatError);
      CHECK_THROWS_WITH_AS(fsdp::data_file_kind(dir / name), doctest::Contains(name), fsdp::FormatError);
    }
  }

  TEST_CASE("what is text stays text") {
    using Kind = fsdp::DataFileKind;
    TempDir dir;
    const std::string euro = "\xe2\x82\xac";  // cut by the end of what is looked at
    std::string cut(65535, 'a');
    const std::vector<std::string> texts{"{\\rtf1 a}",
                                         "<html>a</html>",
                                         "BZhou went home, far away",
                                         "ORCHARD and GGUF and FEA1 and Obj",
                                         "{}\n{}\n",
                                         "{ code block }",
                                         "{\"key\":\n 1}",
                                         cut + euro,
                                         cut + "a\xe9\0"};
    for (const auto& text : texts) {
      CAPTURE(text.substr(0, 40));
      fsdp::replace_file(dir / "a.txt", text);
      CHECK(fsdp::data_file_kind(dir / "a.txt") == Kind::text);
    }
    for (const auto* name : {"a.jsonlines", "a.JL"}) {
      fsdp::replace_file(dir / name, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
      CHECK(read_all(dir / name) == Texts{"a", "b"});
    }
  }

  TEST_CASE("plain text: a text that is longer than allowed is refused") {
    const TempDir dir;
    const std::string whole(2048, 'a');
    fsdp::File::create(dir / "a.txt").write(whole);
    std::string text;
    CHECK(fsdp::detail::open_plain_text(dir / "a.txt", 2048)->next(text));
    CHECK(text == whole);
    const auto refused = fsdp::detail::open_plain_text(dir / "a.txt", 1024);
    CHECK_THROWS_WITH_AS(refused->next(text), doctest::Contains("a.txt: is one text of more than 1 KiB"),
                         fsdp::FormatError);
  }

  TEST_CASE("plain text: one document, an empty file none") {
    TempDir dir;
    CHECK(read_content(dir, "a.txt", "\xef\xbb\xbfone\n\ntwo\n") == Texts{"one\n\ntwo\n"});
    CHECK(read_content(dir, "a", "no suffix") == Texts{"no suffix"});
    CHECK(read_content(dir, "a.txt", "").empty());
  }
}
