#include "lib/checkpoints/programs/dcp/dcp.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "lib/formats/crc32.hpp"
#include "tests/unit/checkpoints/programs/dcp_test_support.hpp"

using namespace fsdp;
using nlohmann::json;

namespace {

DcpItem tensor_item(Shape shape, Shape offsets, Shape sizes) {
  return {"w", {"w"}, true, DType::f32, std::move(shape), std::move(offsets), std::move(sizes), "__0_0.distcp", 0, 10};
}

}  // namespace

TEST_SUITE("formats/dcp") {
  TEST_CASE("read_dcp_metadata: refuses anything that is not DCP metadata, with the reason") {
    const auto open = [](const std::filesystem::path& path) { read_dcp_metadata(path); };
    const test::TempDir directory;
    CHECK_THROWS_WITH_AS(open(directory.path()), doctest::Contains("no .metadata"), FormatError);
    test::write_file(directory / "__0.metadata", "x");
    CHECK_THROWS_AS(open(directory.path()), FormatError);
    CHECK_THROWS_AS(open(directory / "nowhere"), FormatError);
    test::write_file(directory / ".metadata", "not a pickle");
    CHECK_THROWS_AS(open(directory.path()), FormatError);
    test::write_file(directory / ".metadata", "\x80\x02}.");
    CHECK_THROWS_WITH_AS(open(directory.path()), doctest::Contains("Metadata was expected"), FormatError);
  }

  TEST_CASE("read_dcp_metadata: refuses names of data files outside the directory") {
    const test::TempDir directory;
    using namespace std::string_literals;
    for (const auto& name : {"../__0_0.distcp"s, "/etc/passwd"s, "a/../../x"s, "x\0y"s, ".."s, ""s}) {
      CAPTURE(name);
      const test::SmallCheckpoint truth;
      truth.write(directory.path());
      std::string metadata = read_text_file(directory / ".metadata");
      const std::string real = "__0_0.distcp";
      const auto at = metadata.find(real);
      REQUIRE(at != std::string::npos);
      metadata.replace(at - 4, 4, std::string{static_cast<char>(name.size()), 0, 0, 0});
      metadata.replace(at, real.size(), name);
      test::write_file(directory / ".metadata", metadata);
      CHECK_THROWS_WITH_AS(read_dcp_metadata(directory.path()), doctest::Contains("does not lie inside"), FormatError);
    }
  }

  TEST_CASE("write_dcp_metadata: refuses tensors with holes, overlap or disagreement") {
    const test::TempDir directory;
    const auto write = [&](std::vector<DcpItem> items) { write_dcp_metadata(directory.path(), items); };
    CHECK_NOTHROW(write({tensor_item({4}, {0}, {2}), tensor_item({4}, {2}, {2})}));
    CHECK_NOTHROW(write({tensor_item({}, {}, {})}));
    CHECK_NOTHROW(write({tensor_item({0, 5}, {0, 0}, {0, 5}), tensor_item({0, 5}, {0, 0}, {0, 5})}));
    CHECK_NOTHROW(write({tensor_item({1}, {1}, {0}), tensor_item({1}, {0}, {1}), tensor_item({1}, {1}, {0})}));
    CHECK_THROWS_WITH_AS(write({tensor_item({4}, {0}, {2})}), doctest::Contains("2 of the 4"), std::invalid_argument);
    CHECK_THROWS_WITH_AS(write({tensor_item({4}, {0}, {3}), tensor_item({4}, {2}, {2})}), doctest::Contains("overlap"),
                         std::invalid_argument);
    CHECK_THROWS_AS(write({tensor_item({}, {}, {}), tensor_item({}, {}, {})}), std::invalid_argument);
    auto other = tensor_item({4}, {2}, {2});
    other.dtype = DType::f64;
    CHECK_THROWS_WITH_AS(write({tensor_item({4}, {0}, {2}), other}), doctest::Contains("disagree"),
                         std::invalid_argument);
    other.is_tensor = false;
    CHECK_THROWS_AS(write({tensor_item({4}, {0}, {4}), other}), std::invalid_argument);
    other.file = "../x";
    CHECK_THROWS_AS(write({other}), FormatError);
  }

  TEST_CASE("read_dcp_metadata: refuses contradictions") {
    const test::TempDir directory;
    const auto item = [](const std::string& key, std::uint64_t offset_bytes) {
      return DcpItem{key, {key}, false, DType::f32, {}, {}, {}, "__0_0.distcp", offset_bytes, 10};
    };
    const auto open = [&] { read_dcp_metadata(directory.path()); };
    write_dcp_metadata(directory.path(), std::vector{item("a", 0), item("b", 10)});
    CHECK_NOTHROW(open());
    std::string metadata = read_text_file(directory / ".metadata");
    test::write_file(directory / ".metadata", metadata + "x");
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("more bytes follow"), FormatError);
    const auto at = metadata.find(std::string("X\1\0\0\0b", 6));
    REQUIRE(at != std::string::npos);
    metadata[at + 5] = 'a';
    test::write_file(directory / ".metadata", metadata);
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("twice"), FormatError);
    write_dcp_metadata(directory.path(), std::vector{item("a", 0), item("b", 9)});
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("share bytes"), FormatError);
  }

  TEST_CASE("DcpShardWriter: reports length and CRC-32 of the file, and a full disk") {
    const test::TempDir directory;
    const auto bytes = test::random_bytes(400'000, 9);
    const ShardRecord record{"w", DType::u8, {400'000}, {0}, {400'000}, bytes};
    DcpShardWriter writer(directory.path(), 3);
    writer.add_tensor(record, {"w"});
    writer.add_value("v", {"v"}, 1);
    const auto items = writer.finish();
    CHECK(items.at(1).offset_bytes == items.at(0).length_bytes);
    const std::string text = read_text_file(directory / "__3_0.distcp");
    CHECK(writer.bytes_written() == text.size());
    CHECK(writer.file_crc32() == fsdp::crc32(0, std::as_bytes(std::span(text.data(), text.size()))));
    CHECK_THROWS_AS(writer.finish(), std::logic_error);

    std::filesystem::create_symlink("/dev/full", directory / "__4_0.distcp");
    DcpShardWriter full(directory.path(), 4);
    CHECK_THROWS_WITH_AS(full.add_tensor(record, {"w"}), doctest::Contains("No space left"), IoError);
    DcpShardWriter late(directory.path(), 4);
    late.add_value("v", {"v"}, 1);
    CHECK_THROWS_AS(late.finish(), IoError);
    CHECK_THROWS_AS(DcpShardWriter(directory / "nowhere", 0), IoError);
  }

  TEST_CASE("DcpShardWriter: refuses a block that does not fit") {
    const test::TempDir directory;
    DcpShardWriter writer(directory.path(), 0);
    const test::Bytes bytes(8);
    CHECK_THROWS_AS(writer.add_tensor({"w", DType::f32, {2}, {1}, {2}, bytes}, {"w"}), std::invalid_argument);
    CHECK_THROWS_AS(writer.add_tensor({"w", DType::f32, {2}, {0}, {1}, bytes}, {"w"}), std::invalid_argument);
  }

  TEST_CASE("deserialize_dcp_items: returns the serialized items, and refuses a truncated list") {
    auto item = tensor_item({4, 6}, {2, 0}, {2, 6});
    item.path = {"a", std::int64_t{3}, "b.c"};
    const DcpItem value{.key = "v", .file = "__1_0.distcp", .offset_bytes = 5, .length_bytes = 6};
    const std::vector<DcpItem> items{item, value};
    const auto bytes = serialize_dcp_items(items);
    const auto found = deserialize_dcp_items(bytes);
    REQUIRE(found.size() == 2);
    CHECK(found[0].path == item.path);
    CHECK(found[0].sizes == item.sizes);
    CHECK(serialize_dcp_items(found) == bytes);
    CHECK_THROWS_AS(deserialize_dcp_items(std::string_view(bytes).substr(1)), FormatError);
    CHECK_THROWS_AS(deserialize_dcp_items(std::string_view(bytes).substr(0, bytes.size() - 1)), FormatError);
  }
}
