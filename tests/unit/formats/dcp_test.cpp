#include "lib/formats/dcp.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/formats/pickle_writer.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/unit/formats/dcp_test_support.hpp"

using namespace fsdp;
using nlohmann::json;

namespace {

/// Compares every tensor that the truth names with what the reader gives; returns how many there were.
int compare_with_truth(const std::string& name) {
  const DcpReader reader(test::fixture(name) / "ckpt");
  const SafetensorsReader expected(test::fixture(name) / "expected.safetensors");
  int compared = 0;
  for (const auto& [key, entry] : expected.tensors()) {
    CAPTURE(key);
    if (!reader.tensors().contains(key)) continue;
    CHECK(reader.tensors().at(key).dtype == entry.dtype);
    CHECK(reader.tensors().at(key).shape == entry.shape);
    test::Bytes bytes(entry.end - entry.begin);
    expected.read_rows(key, 0, entry.shape.empty() ? 1 : entry.shape[0], bytes);
    CHECK(test::read_whole(reader, key) == bytes);
    ++compared;
  }
  for (const auto& [key, tensor] : reader.tensors()) CHECK_NOTHROW(test::read_whole(reader, key));
  return compared;
}

DcpItem tensor_item(Shape shape, Shape offsets, Shape sizes) {
  return {"w", {"w"}, true, DType::f32, std::move(shape), std::move(offsets), std::move(sizes), "__0_0.distcp", 0, 10};
}

}  // namespace

TEST_SUITE("formats/dcp") {
  TEST_CASE("DcpReader: reads back what two ranks wrote, whole and in any block") {
    const test::TempDir directory;
    const test::SmallCheckpoint truth;
    truth.write(directory.path());
    const DcpReader reader(directory.path());
    CHECK(reader.tensors().size() == truth.tensors.size());
    CHECK(reader.value_keys() == std::vector<std::string>{"epoch", "groups"});
    for (const auto& [key, value] : truth.values) CHECK(reader.value(key) == value);
    CHECK(reader.value_archive("epoch").starts_with("PK\3\4"));
    for (const auto& [key, tensor] : truth.tensors) {
      CAPTURE(key);
      CHECK(test::read_whole(reader, key) == tensor.bytes);
      REQUIRE(reader.path(key) != nullptr);
      CHECK(*reader.path(key) == StatePath{key});
    }
    for (std::int64_t r = 0; r < 4; ++r) {
      for (std::int64_t rows = 0; r + rows <= 4; ++rows) {
        for (std::int64_t c = 0; c < 3; ++c) {
          const Block block{{r, c}, {rows, 3 - c}};
          test::Bytes out(test::tensor_bytes(DType::f32, block.sizes));
          reader.read_block("model.w", block.offsets, block.sizes, out);
          CHECK(out == test::cut(truth.tensors.at("model.w"), block));
        }
      }
    }
  }

  TEST_CASE("DcpReader: checkpoints of PyTorch 1.13 to 2.11") {
    CHECK(compare_with_truth("dcp_t211_ws2_app") >= 15);
    CHECK(compare_with_truth("dcp_t241_ws2_app") >= 15);
    CHECK(compare_with_truth("dcp_t201_ws2_app") >= 5);
    CHECK(compare_with_truth("fsdp2_t211_ws4_tp") >= 15);
    CHECK(compare_with_truth("fsdp2_t211_ws4_zeroshard") >= 15);
    const DcpReader old(test::fixture("local_t113_ws2_gpt") / "ckpt");
    REQUIRE(old.tensors().contains("flat_param"));
    CHECK(test::read_whole(old, "flat_param").size() > 1000);
    CHECK(old.path("flat_param") == nullptr);
  }

  TEST_CASE("DcpReader: values and paths that PyTorch wrote") {
    const DcpReader reader(test::fixture("dcp_t211_ws2_app") / "ckpt");
    CHECK(reader.value("step") == 1234567890123);
    CHECK(reader.value("run_name") == "tiny-\u00e9\u4e2d-run");
    CHECK(reader.value("none") == nullptr);
    CHECK(reader.value("lr_scheduler.base_lrs") == json{0.01, 0.002});
    CHECK(reader.value("dataloader.order") == json{3, 1, 2});
    CHECK(*reader.path("mixed_list.1") == StatePath{"mixed_list", std::int64_t{1}});
    CHECK_THROWS_AS(reader.value("bytes"), FormatError);
    CHECK_THROWS_AS(reader.value("neg"), FormatError);
    const DcpReader older(test::fixture("dcp_t201_ws2_app") / "ckpt");
    CHECK(older.value("dataloader")["cursor"]["offset"] == 1099511627781);
    CHECK(older.value("dataloader")["ids"]["5"] == "a");
  }

  TEST_CASE("DcpReader: refuses variants it cannot read and says which") {
    const auto open = [](const std::filesystem::path& path) { DcpReader reader(path); };
    CHECK_THROWS_WITH_AS(open(test::fixture("dcp_t211_ws2_zstd") / "ckpt"), doctest::Contains("compressed"),
                         FormatError);
    CHECK_THROWS_WITH_AS(open(test::fixture("dcp_t211_ws2_stformat") / "ckpt"), doctest::Contains("SAFETENSORS"),
                         FormatError);
    const test::TempDir directory;
    CHECK_THROWS_WITH_AS(open(directory.path()), doctest::Contains("no .metadata"), FormatError);
    test::write_file(directory / "__0.metadata", "x");
    CHECK_THROWS_WITH_AS(open(directory.path()), doctest::Contains("use_collectives"), FormatError);
    CHECK_THROWS_AS(open(directory / "nowhere"), FormatError);
    test::write_file(directory / ".metadata", "not a pickle");
    CHECK_THROWS_AS(open(directory.path()), FormatError);
    test::write_file(directory / ".metadata", "\x80\x02}.");
    CHECK_THROWS_WITH_AS(open(directory.path()), doctest::Contains("Metadata was expected"), FormatError);
  }

  TEST_CASE("DcpReader: a wrong request is a usage error") {
    const test::TempDir directory;
    test::SmallCheckpoint().write(directory.path());
    const DcpReader reader(directory.path());
    test::Bytes out(12);
    CHECK_THROWS_AS(reader.read_block("nothing", {0}, {1}, out), UsageError);
    CHECK_THROWS_AS(reader.read_block("model.w", {4, 0}, {1, 3}, out), UsageError);
    CHECK_THROWS_AS(reader.read_block("model.w", {0}, {1}, out), UsageError);
    CHECK_THROWS_AS(reader.read_block("model.w", {0, 0}, {2, 3}, out), UsageError);
    CHECK_THROWS_AS(reader.value("model.w"), UsageError);
  }

  TEST_CASE("DcpReader: names of data files must stay in the directory") {
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
      CHECK_THROWS_WITH_AS(DcpReader(directory.path()), doctest::Contains("does not lie inside"), FormatError);
    }
  }

  TEST_CASE("write_dcp_metadata: refuses tensors with holes, overlap or disagreement") {
    const test::TempDir directory;
    const auto write = [&](std::vector<DcpItem> items) { write_dcp_metadata(directory.path(), items); };
    CHECK_NOTHROW(write({tensor_item({4}, {0}, {2}), tensor_item({4}, {2}, {2})}));
    CHECK_NOTHROW(write({tensor_item({}, {}, {})}));
    CHECK_NOTHROW(write({tensor_item({0, 5}, {0, 0}, {0, 5}), tensor_item({0, 5}, {0, 0}, {0, 5})}));
    CHECK_NOTHROW(write({tensor_item({1}, {1}, {0}), tensor_item({1}, {0}, {1}), tensor_item({1}, {1}, {0})}));
    CHECK_THROWS_WITH_AS(write({tensor_item({4}, {0}, {2})}), doctest::Contains("2 of the 4"), UsageError);
    CHECK_THROWS_WITH_AS(write({tensor_item({4}, {0}, {3}), tensor_item({4}, {2}, {2})}), doctest::Contains("overlap"),
                         UsageError);
    CHECK_THROWS_AS(write({tensor_item({}, {}, {}), tensor_item({}, {}, {})}), UsageError);
    auto other = tensor_item({4}, {2}, {2});
    other.dtype = DType::f64;
    CHECK_THROWS_WITH_AS(write({tensor_item({4}, {0}, {2}), other}), doctest::Contains("disagree"), UsageError);
    other.is_tensor = false;
    CHECK_THROWS_AS(write({tensor_item({4}, {0}, {4}), other}), UsageError);
    other.file = "../x";
    CHECK_THROWS_AS(write({other}), FormatError);
  }

  TEST_CASE("DcpReader: a block that no chunk covers is an error, not zeros") {
    const test::TempDir directory;
    test::SmallCheckpoint truth;
    truth.tensors = {{"w", test::random_tensor(DType::f32, {4, 3}, 1)}};
    truth.write(directory.path());
    std::string metadata = read_text_file(directory / ".metadata");
    // Twice the rows in the tensor's size: the first torch.Size of the file is K<rows> K<columns>.
    const auto at = metadata.find("(K\4K\3t");
    REQUIRE(at != std::string::npos);
    metadata[at + 2] = 8;
    test::write_file(directory / ".metadata", metadata);
    const DcpReader reader(directory.path());
    CHECK_THROWS_WITH_AS(test::read_whole(reader, "w"), doctest::Contains("12 of the 24"), FormatError);
  }

  TEST_CASE("DcpReader: a block of another type or shape than .metadata says is refused") {
    const test::TempDir directory;
    const test::Bytes bytes(24);
    DcpShardWriter writer(directory.path(), 0);
    writer.add_tensor({"w", DType::f32, {2, 3}, {0, 0}, {2, 3}, bytes}, {"w"});
    const auto items = writer.finish();
    const auto read_as = [&](DType dtype, const Shape& shape) {
      auto changed = items;
      changed[0].dtype = dtype;
      changed[0].global_shape = changed[0].sizes = shape;
      write_dcp_metadata(directory.path(), changed);
      test::read_whole(DcpReader(directory.path()), "w");
    };
    CHECK_NOTHROW(read_as(DType::f32, {2, 3}));
    CHECK_THROWS_WITH_AS(read_as(DType::i32, {2, 3}), doctest::Contains("holds a float32 tensor"), FormatError);
    CHECK_THROWS_WITH_AS(read_as(DType::f32, {3, 2}), doctest::Contains("of shape (3, 2)"), FormatError);
  }

  TEST_CASE("read_dcp_metadata: refuses contradictions") {
    const test::TempDir directory;
    const auto item = [](const std::string& key, std::uint64_t offset_bytes) {
      return DcpItem{key, {key}, false, DType::f32, {}, {}, {}, "__0_0.distcp", offset_bytes, 10};
    };
    const auto open = [&] { DcpReader reader(directory.path()); };
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
    CHECK_THROWS_AS(writer.add_tensor({"w", DType::f32, {2}, {1}, {2}, bytes}, {"w"}), UsageError);
    CHECK_THROWS_AS(writer.add_tensor({"w", DType::f32, {2}, {0}, {1}, bytes}, {"w"}), UsageError);
  }

  TEST_CASE("deserialize_dcp_items: gives back the items, and refuses cut lists") {
    auto item = tensor_item({4, 6}, {2, 0}, {2, 6});
    item.path = {"a", std::int64_t{3}, "b.c"};
    const DcpItem value{"v", {}, false, DType::f32, {}, {}, {}, "__1_0.distcp", 5, 6};
    const std::vector<DcpItem> items{item, value};
    const std::string bytes = serialize_dcp_items(items);
    const auto found = deserialize_dcp_items(bytes);
    REQUIRE(found.size() == 2);
    CHECK(found[0].path == item.path);
    CHECK(found[0].sizes == item.sizes);
    CHECK(serialize_dcp_items(found) == bytes);
    const auto first_length = serialize_dcp_items(std::span(items).first(1)).size();
    for (std::size_t length = 1; length < bytes.size(); ++length) {
      if (length == first_length) continue;
      CAPTURE(length);
      CHECK_THROWS_AS(deserialize_dcp_items(std::string_view(bytes).substr(0, length)), FormatError);
    }
  }
}
