// Reads back what DcpShardWriter and write_dcp_metadata() wrote.
#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/formats/torch_blob.hpp"
#include "tests/unit/checkpoints/programs/dcp_test_support.hpp"
#include "tests/unit/checkpoints/programs/source_test_support.hpp"

using namespace fsdp;

TEST_SUITE("source/dcp_written") {
  TEST_CASE("DcpSource: reads what two ranks wrote, whole tensors and any range of elements") {
    const test::TempDir directory;
    const test::SmallCheckpoint truth;
    truth.write(directory.path());
    const auto source = open_source(directory.path());
    CHECK(source->tensors().size() == truth.tensors.size());
    for (const auto& [key, tensor] : truth.tensors) {
      CAPTURE(key);
      const auto number = test::number_of(*source, key);
      CHECK(source->tensors()[number].shape == tensor.shape);
      CHECK(source->tensors()[number].dtype == tensor.dtype);
      CHECK(source->tensors()[number].path == StatePath{key});
      for (const std::uint64_t piece : {1, 2, 5, 100}) CHECK(test::read_pieces(*source, number, piece) == tensor.bytes);
    }
    REQUIRE(source->values().size() == truth.values.size());
    for (std::size_t i = 0; i < truth.values.size(); ++i) {
      const auto loaded = source->value(i);
      CHECK(pickle_to_json(*loaded.value, "value") == truth.values.at(source->values()[i].name));
    }
  }

  TEST_CASE("DcpSource: refuses a tensor with a block that no chunk covers") {
    const test::TempDir directory;
    test::SmallCheckpoint truth;
    truth.tensors = {{"w", test::random_tensor(DType::f32, {4, 3}, 1)}};
    truth.write(directory.path());
    std::string metadata = read_text_file(directory / ".metadata");
    // Doubles the rows in the size of the tensor: the first torch.Size of the file is K<rows> K<columns>.
    const auto at = metadata.find("(K\4K\3t");
    REQUIRE(at != std::string::npos);
    metadata[at + 2] = 8;
    test::write_file(directory / ".metadata", metadata);
    CHECK_THROWS_WITH_AS(open_source(directory.path()), doctest::Contains("12 of the 24"), FormatError);
  }

  TEST_CASE("DcpSource: refuses a block whose type or shape contradicts .metadata") {
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
      test::read_whole(*open_source(directory.path()), 0);
    };
    CHECK_NOTHROW(read_as(DType::f32, {2, 3}));
    CHECK_THROWS_WITH_AS(read_as(DType::i32, {2, 3}), doctest::Contains("holds a float32 tensor"), FormatError);
    CHECK_THROWS_WITH_AS(read_as(DType::f32, {3, 2}), doctest::Contains("of shape (3, 2)"), FormatError);
  }
}
