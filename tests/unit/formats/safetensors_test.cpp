#include "lib/formats/safetensors.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

ShardRecord whole(const std::string& name, DType dtype, const Shape& shape, const test::Bytes& bytes) {
  return {name, dtype, shape, Shape(shape.size(), 0), shape, bytes};
}

std::string file_with(const std::string& header, std::size_t data_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(std::uint64_t{header.size()} >> (8 * i) & 0xff);
  return text + header + std::string(data_bytes, 'd');
}

test::Bytes read_all(const SafetensorsReader& reader, const std::string& name) {
  const auto& entry = reader.tensors().at(name);
  test::Bytes bytes(entry.end - entry.begin);
  reader.read_rows(name, 0, entry.shape.empty() ? 1 : entry.shape[0], bytes);
  return bytes;
}

}  // namespace

TEST_SUITE("formats/safetensors") {
  TEST_CASE("SafetensorsReader: reads back what write_safetensors wrote, whole and by rows") {
    const test::TempDir directory;
    const auto path = directory / "model.safetensors";
    const auto a = test::random_bytes(10 * 3 * 4, 1), b = test::random_bytes(2, 2), c = test::random_bytes(5, 3);
    const std::vector<ShardRecord> records{whole("b", DType::bf16, {}, b), whole("c", DType::boolean, {5}, c),
                                           whole("a\"\n", DType::f32, {10, 3}, a), whole("e", DType::f64, {0, 7}, {})};
    write_safetensors(path, records, {{"format", "pt"}});
    const SafetensorsReader reader(path);
    CHECK(reader.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
    CHECK(reader.tensors().size() == 4);
    CHECK(read_all(reader, "a\"\n") == a);
    CHECK(read_all(reader, "b") == b);
    CHECK(read_all(reader, "c") == c);
    CHECK(reader.tensors().at("e").shape == Shape{0, 7});
    test::Bytes rows(4 * 12);
    reader.read_rows("a\"\n", 3, 4, rows);
    CHECK(std::equal(rows.begin(), rows.end(), a.begin() + 3 * 12));
    CHECK_THROWS_AS(reader.read_rows("a\"\n", 7, 4, rows), std::invalid_argument);
    CHECK_THROWS_AS(reader.read_rows("a\"\n", -1, 4, rows), std::invalid_argument);
    CHECK_THROWS_AS(reader.read_rows("a\"\n", 0, 3, rows), std::invalid_argument);
    CHECK_THROWS_AS(reader.read_rows("nothing", 0, 3, rows), std::invalid_argument);
    CHECK(reader.tensors().at("a\"\n").begin % 8 == 0);
    CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);  // no temporary file is left
  }

  TEST_CASE("write_safetensors: writes the bytes that the reference writer writes") {
    const auto path = test::fixture("st_zoo") / "model.safetensors";
    const SafetensorsReader reader(path);
    std::vector<test::Bytes> data;
    std::vector<ShardRecord> records;
    for (const auto& [name, entry] : reader.tensors()) {
      data.push_back(read_all(reader, name));
      records.push_back(whole(name, entry.dtype, entry.shape, data.back()));
    }
    const test::TempDir directory;
    write_safetensors(directory / "copy", records, reader.metadata());
    const SafetensorsReader copy(directory / "copy");
    CHECK(copy.tensors().size() == reader.tensors().size());
    for (const auto& [name, entry] : reader.tensors()) {
      CAPTURE(name);
      CHECK(read_all(copy, name) == read_all(reader, name));
      CHECK(copy.tensors().at(name).begin == entry.begin);
    }
    // The reference writer's order of strings in __metadata__ is arbitrary; everything after it must be equal.
    const auto after_metadata = [](const std::filesystem::path& file) {
      const std::string text = read_text_file(file);
      return text.substr(text.find("\"i64\":{"));
    };
    CHECK(after_metadata(directory / "copy") == after_metadata(path));
  }

  TEST_CASE("write_safetensors: refuses partial, repeated and complex tensors") {
    const test::TempDir directory;
    const test::Bytes bytes(8);
    const auto write = [&](std::vector<ShardRecord> records) { write_safetensors(directory / "x", records, {}); };
    CHECK_THROWS_AS(write({{"w", DType::f32, {4}, {0}, {2}, bytes}}), std::invalid_argument);
    CHECK_THROWS_AS(write({whole("w", DType::f32, {3}, bytes)}), std::invalid_argument);
    CHECK_THROWS_AS(write({whole("w", DType::f32, {2}, bytes), whole("w", DType::f64, {1}, bytes)}), RequestError);
    CHECK_THROWS_AS(write({whole("w", DType::c64, {1}, bytes)}), RequestError);
    CHECK_FALSE(std::filesystem::exists(directory / "x"));
  }

  TEST_CASE("SafetensorsReader: refuses a name that occurs twice, whatever its entries are") {
    const test::TempDir directory;
    const std::string a = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
                      other = R"("w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]})",
                      behind = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]})";
    for (const auto& [header, name] : std::vector<std::pair<std::string, std::string>>{
             {"{" + a + "," + a + "}", "w"},
             {"{" + a + "," + other + "}", "w"},
             {"{" + a + "," + behind + "}", "w"},
             {R"({"__metadata__":{"k":"1"},)" + a + R"(,"__metadata__":{"k":"1"}})", "__metadata__"},
             {R"({"__metadata__":{"k":"1","k":"2"},)" + a + "}", "k"},
             {R"({"w":{"dtype":"I64","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "dtype"}}) {
      CAPTURE(header);
      test::write_file(directory / "x.safetensors", file_with(header, header.find("16") == std::string::npos ? 8 : 16));
      CHECK_THROWS_WITH_AS(SafetensorsReader(directory / "x.safetensors"),
                           doctest::Contains(("x.safetensors: at byte")), FormatError);
      CHECK_THROWS_WITH_AS(SafetensorsReader(directory / "x.safetensors"),
                           doctest::Contains(("the name \"" + name + "\" occurs twice").c_str()), FormatError);
    }
  }

  TEST_CASE("SafetensorsReader: tensors of types without a DType are read as bytes and written back unchanged") {
    const test::TempDir directory;
    for (const auto& [type, bytes] :
         std::vector<std::pair<std::string, std::size_t>>{{"F4", 8}, {"F6_E3M2", 12}, {"F8_E8M0", 16}}) {
      CAPTURE(type);
      const auto header =
          R"({"w":{"dtype":")" + type + R"(","shape":[2,8],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
      test::write_file(directory / "x", file_with(header, bytes));
      const auto entry = SafetensorsReader(directory / "x").tensors().at("w");
      CHECK(entry.shape == Shape{static_cast<std::int64_t>(bytes)});
      REQUIRE(entry.other);
      CHECK(entry.other->name == type);
      CHECK(entry.other->shape == Shape{2, 8});
      const std::vector<SafetensorsItem> items{{"w", entry.dtype, entry.shape, entry.other}};
      const auto plan = plan_safetensors(items, {});
      CHECK(plan.head.find(header) != std::string::npos);
      CHECK(plan.size_bytes == plan.head.size() + bytes);
      test::write_file(directory / "x", file_with(header, bytes + 1));
      CHECK_THROWS_AS(SafetensorsReader(directory / "x"), FormatError);
    }
    test::write_file(directory / "x", file_with(R"({"w":{"dtype":"C64","shape":[2],"data_offsets":[0,16]}})", 16));
    CHECK(SafetensorsReader(directory / "x").tensors().at("w").dtype == DType::c64);
  }

  TEST_CASE("SafetensorsReader: refuses broken headers") {
    const test::TempDir directory;
    const auto open = [&](const std::string& text) {
      test::write_file(directory / "x", text);
      SafetensorsReader(directory / "x");
    };
    const auto entry = [](const std::string& body) { return "{\"w\":{" + body + "}}"; };
    const std::string good = "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]";
    CHECK_NOTHROW(open(file_with(entry(good), 8)));
    CHECK_NOTHROW(open(file_with("{}  ", 0)));
    const std::string headers[] = {"",
                                   "[]",
                                   "{",
                                   " {}",
                                   "{\"w\":1}",
                                   entry(""),
                                   "{\"__metadata__\":{\"a\":1}," + entry(good).substr(1),
                                   entry("\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]"),
                                   entry("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"),  // a gap before
                                   entry("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"),  // a gap after
                                   "{\"a\":{" + good + "},\"b\":{" + good + "}}",                    // overlap
                                   std::string(100'000, '{')};
    for (const auto& header : headers) {
      CAPTURE(header.substr(0, 100));
      CHECK_THROWS_AS(open(file_with(header, 8)), FormatError);
    }
    CHECK_THROWS_AS(open(""), FormatError);
    CHECK_THROWS_AS(open("\xff\xff\xff\xff\xff\xff\xff\xff{}"), FormatError);
    const std::string whole_file = file_with(entry(good), 8);
    for (std::size_t length = 0; length < whole_file.size(); ++length) {
      CHECK_THROWS_AS(open(whole_file.substr(0, length)), FormatError);
    }
  }
}
