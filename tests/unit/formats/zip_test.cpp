#include "lib/formats/zip.hpp"

#include <doctest/doctest.h>

#include <array>

#include "lib/base/types/error.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/crc32.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

struct Sample {
  test::TempDir directory;
  std::filesystem::path path = directory / "sample";
  std::uint64_t begin_bytes = 0, length_bytes = 0;
  test::Bytes data = test::random_bytes(1000, 11);

  /// An archive after `junk_bytes` of other data.
  explicit Sample(std::size_t junk_bytes) : begin_bytes(junk_bytes) {
    ByteSink sink(path);
    sink.write(std::string(junk_bytes, '?'));
    ZipPlan plan("archive");
    plan.add("data.pkl", "pickle");
    const auto data_at = plan.add_data("data/0", data.size());
    plan.add("data/1", "");
    plan.finish();
    sink.write(plan.head());
    REQUIRE(sink.position() == begin_bytes + data_at);
    const std::array crcs{sink.write(data)};
    for (const auto& piece : plan.tail(crcs)) {
      REQUIRE(sink.position() == begin_bytes + piece.offset_bytes);
      sink.write(piece.bytes);
    }
    length_bytes = plan.size_bytes();
    REQUIRE(sink.position() == begin_bytes + length_bytes);
    sink.write("more");
    sink.finish();
  }

  /// Overwrites bytes at `offset` from the first match of `marker`.
  void damage(std::string_view marker, std::uint64_t offset, std::string_view bytes) const {
    const auto at = read_text_file(path).find(marker);
    REQUIRE(at != std::string::npos);
    File file = File::create(directory / "copy");
    std::string text = read_text_file(path);
    text.replace(at + offset, bytes.size(), bytes);
    file.write(text);
  }

  std::string read_all(const std::filesystem::path& file_path) const {
    const File file = File::open_read(file_path);
    const ZipReader zip(file, begin_bytes, length_bytes);
    std::string all;
    for (const auto& entry : zip.entries()) all += entry.name + "=" + zip.read_text(entry) + ";";
    return all;
  }
};

using namespace std::string_view_literals;
constexpr auto central = "PK\1\2"sv, local = "PK\3\4"sv, end = "PK\5\6"sv, end64 = "PK\6\6"sv;

}  // namespace

TEST_SUITE("formats/zip") {
  TEST_CASE("ZipReader: reads what ZipPlan laid out, at any offset of a file, aligned to 64 bytes") {
    for (const std::size_t junk : {0u, 1u, 100u}) {
      CAPTURE(junk);
      const Sample sample(junk);
      const File file = File::open_read(sample.path);
      const ZipReader zip(file, sample.begin_bytes, sample.length_bytes);
      REQUIRE(zip.entries().size() == 3);
      test::Bytes found(sample.data.size());
      zip.read(*zip.find("archive/data/0"), found);
      CHECK(found == sample.data);
      CHECK(zip.read_text(zip.find_suffix("/data.pkl")) == "pickle");
      CHECK(zip.find("archive/data/1")->size_bytes == 0);
      CHECK(zip.find("archive/nothing") == nullptr);
      for (const auto& entry : zip.entries()) CHECK((zip.data_offset(entry) - junk) % 64 == 0);
      CHECK_THROWS_AS(zip.read_text(zip.entries()[1], 999), FormatError);
      CHECK_THROWS_AS(zip.find_suffix("/nothing"), FormatError);
    }
  }

  TEST_CASE("ByteSink: computes the CRC-32 of the whole file, for large and small writes") {
    const test::TempDir directory;
    const auto bytes = test::random_bytes(300'000, 4);
    ByteSink sink(directory / "file");
    std::size_t done = 0;
    for (const std::size_t step : {10u, 70'000u, 65'536u, 1u, 100'000u, 64'453u}) {
      sink.write(std::span(bytes).subspan(done, step));
      done += step;
    }
    REQUIRE(done == bytes.size());
    sink.finish();
    CHECK(sink.crc32() == fsdp::crc32(0, bytes));
    CHECK(sink.position() == bytes.size());
    CHECK(read_text_file(directory / "file") == test::as_text(bytes));
  }

  TEST_CASE("ZipReader: reports damaged data with file, entry and offset; a CRC-32 of 0 counts as absent") {
    const Sample sample(10);
    const auto copy = sample.directory / "copy";
    sample.damage(test::as_text(std::span(sample.data).first(16)), 5, "X");
    CHECK_THROWS_WITH_AS(sample.read_all(copy), doctest::Contains("archive/data/0"), FormatError);
    CHECK_THROWS_WITH_AS(sample.read_all(copy), doctest::Contains("copy: at byte "), FormatError);
    sample.damage(central, 16, "\0\0\0\0"sv);  // no CRC for data.pkl
    CHECK(sample.read_all(copy) == sample.read_all(sample.path));
  }

  TEST_CASE("ZipReader: refuses headers and directories that contradict each other") {
    const Sample sample(0);
    const auto copy = sample.directory / "copy";
    const struct {
      std::string_view marker;
      std::uint64_t offset;
      std::string_view bytes, message;
    } cases[] = {
        {central, 10, "\10", "compressed"},                    // method: deflate
        {central, 8, "\1", "compressed or encrypted"},         // flag: encrypted
        {central, 24, "\7", "two different sizes"},            // uncompressed size
        {central, 28, "\377\377", "cut off"},                  // name length
        {central, 42, "\377\377\377\177", "lies outside"},     // header offset
        {central, 42, "\377\377\377\377", "zip64"},            // marked as zip64 without a zip64 field
        {central, 0, "QQ", "PK\\1\\2"},                        //
        {local, 26, "\1", "contradicts"},                      // name length
        {local, 28, "\377\377", "overlaps"},                   // extra field length
        {local, 31, "X", "contradicts"},                       // name
        {local, 0, "QQ", "PK\\3\\4"},                          //
        {end, 20, "\1", "comment"},                            //
        {end64, 32, "\4", "entries do not fit"},               // one entry too many
        {end64, 32, "\2", "more than its end record counts"},  // one entry too few
        {end64, 32, "\377\377\377\377\377\377\377\377", "do not fit"},
        {end64, 48, "\0\0"sv, "right before"},  // directory offset
    };
    for (const auto& damage : cases) {
      CAPTURE(damage.message);
      sample.damage(damage.marker, damage.offset, damage.bytes);
      CHECK_THROWS_WITH_AS(sample.read_all(copy), doctest::Contains(damage.message.data()), FormatError);
    }
  }

  TEST_CASE("ZipReader: entries must not share bytes or names") {
    const Sample sample(0);
    const auto copy = sample.directory / "copy";
    std::string text = read_text_file(sample.path);
    const auto first = text.find(central), second = text.find(central, first + 4);
    text.replace(second + 42, 4, text.substr(first + 42, 4));  // data/0 gets the offset of data.pkl
    test::write_file(copy, text);
    CHECK_THROWS_WITH_AS(sample.read_all(copy), doctest::Contains("overlaps"), FormatError);

    text = read_text_file(sample.path);
    for (auto at = text.find("data/1"); at != std::string::npos; at = text.find("data/1")) text[at + 5] = '0';
    test::write_file(copy, text);
    CHECK_THROWS_WITH_AS(sample.read_all(copy), doctest::Contains("twice"), FormatError);
  }

  TEST_CASE("ZipReader: refuses a range that is not exactly the archive") {
    const Sample sample(10);
    const File file = File::open_read(sample.path);
    const auto open = [&](std::uint64_t begin, std::uint64_t length) { ZipReader(file, begin, length); };
    CHECK_NOTHROW(open(10, sample.length_bytes));
    CHECK_THROWS_AS(open(9, sample.length_bytes), FormatError);
    CHECK_THROWS_AS(open(10, sample.length_bytes - 1), FormatError);
    CHECK_THROWS_AS(open(10, sample.length_bytes + 1), FormatError);
    CHECK_THROWS_AS(open(10, 0), FormatError);
    CHECK_THROWS_WITH_AS(open(10, ~0ull), doctest::Contains("cut short"), FormatError);
    CHECK_THROWS_AS(open(~0ull, 5), FormatError);
  }
}
