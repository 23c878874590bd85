#include "lib/formats/torch_blob.hpp"
#include "lib/formats/torch_blob_writer.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/support/torch_blob_reading.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;
using nlohmann::json;

namespace {

/// A torch.save file whose content is one dict.
struct TorchFile {
  File file;
  TorchBlob blob;

  explicit TorchFile(const std::string& name)
      : file(File::open_read(test::fixture(name) / "ckpt.pt")), blob(file, 0, file.size_bytes()) {}

  const PickleDict& dict() const {
    const auto& root = *blob.document().root;
    if (root.dict() != nullptr) return *root.dict();
    REQUIRE(root.object_of("collections", "OrderedDict") != nullptr);
    return root.object()->entries;
  }
  const PickleValue& at(std::string_view key) const {
    for (const auto& [name, value] : dict().items) {
      if (name->string() != nullptr && name->string()->text == key) return *value;
    }
    throw std::runtime_error("no key " + std::string(key));
  }
  std::string path() const { return file.path().string(); }
};

test::Bytes read_expected(const SafetensorsReader& expected, const std::string& key) {
  const auto& entry = expected.tensors().at(key);
  test::Bytes bytes(entry.end - entry.begin);
  expected.read_rows(key, 0, entry.shape.empty() ? 1 : entry.shape[0], bytes);
  return bytes;
}

/// Compares every tensor at the top of the file with the expected one; returns the number of tensors.
int compare_tensors(const TorchFile& found, const SafetensorsReader& expected) {
  int compared = 0;
  for (const auto& [name, value] : found.dict().items) {
    const std::string key(name->string()->text);
    if (key == "conj") continue;
    const auto view = tensor_view(*value, found.path());
    if (!view) continue;
    CAPTURE(key);
    const bool is_complex = view->dtype == DType::c64;
    const std::string expected_key = is_complex ? key + "@view_as_real" : key;
    REQUIRE(expected.tensors().contains(expected_key));
    if (!is_complex) {
      CHECK(expected.tensors().at(expected_key).dtype == view->dtype);
      CHECK(expected.tensors().at(expected_key).shape == view->sizes);
    }
    CHECK(test::elements_of(found.blob, *view) == read_expected(expected, expected_key));
    ++compared;
  }
  return compared;
}

/// The view of a float32 tensor into a storage of `numel` elements, read from a pickle.
TensorView parse_view(std::int64_t numel, std::int64_t offset, const Shape& sizes, const Shape& strides) {
  PickleWriter pickle;
  const auto counts = [&](const Shape& shape) {
    pickle.mark();
    for (const auto count : shape) pickle.integer(count);
    pickle.tuple();
  };
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.string("storage");
  pickle.global("torch", "FloatStorage");
  pickle.string("0");
  pickle.string("cpu");
  pickle.integer(numel);
  pickle.tuple();
  pickle.persistent_id();
  pickle.integer(offset);
  counts(sizes);
  counts(strides);
  pickle.boolean(false);
  pickle.none();
  pickle.tuple();
  pickle.reduce();
  const auto document = read_pickle({std::make_shared<const std::string>(pickle.finish()), 0, "test.pkl", 0});
  return tensor_view(*document.root, "test.pkl").value();
}

}  // namespace

TEST_SUITE("formats/torch_blob") {
  TEST_CASE("tensor blobs: round trip for all types, scalars, empty shapes") {
    const test::TempDir directory;
    for (const auto& row : dtype_rows()) {
      const auto dtype = row.dtype;
      for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{0, 4}, Shape{2, 0}, Shape{1, 1, 7, 1}}) {
        CAPTURE(torch_name(dtype));
        const auto bytes = test::random_bytes(test::tensor_bytes(dtype, shape), static_cast<unsigned>(dtype));
        ByteSink sink(directory / "blob");
        const auto length = write_tensor_blob(sink, dtype, shape, bytes);
        sink.finish();
        const File file = File::open_read(directory / "blob");
        CHECK(length == file.size_bytes());
        const TorchBlob blob(file, 0, length);
        const auto view = test::view_of(blob);
        REQUIRE(view);
        CHECK(view->dtype == dtype);
        CHECK(view->sizes == shape);
        CHECK(test::elements_of(blob, *view) == bytes);
        CHECK_THROWS_AS(test::value_of(blob), FormatError);
      }
    }
  }

  TEST_CASE("value blobs: round trip; a value is not a tensor") {
    const test::TempDir directory;
    const json value = {{"step", 7}, {"name", "x"}, {"betas", {0.9, 0.95}}, {"none", nullptr}};
    ByteSink sink(directory / "blob");
    const auto length = write_value_blob(sink, value);
    sink.finish();
    const File file = File::open_read(directory / "blob");
    const TorchBlob blob(file, 0, length);
    CHECK(test::value_of(blob) == value);
    CHECK_FALSE(test::view_of(blob));
  }

  TEST_CASE("tensor_view: PyTorch's element types, views and shared storages") {
    for (const auto* name : {"pt_t211_zoo", "pt_t241_zoo"}) {
      CAPTURE(name);
      const TorchFile zoo(name);
      CHECK(compare_tensors(zoo, SafetensorsReader(test::fixture(name) / "expected.safetensors")) >= 30);
      CHECK(tensor_view(zoo.at("tied.a"), "")->storage_key == tensor_view(zoo.at("tied.b"), "")->storage_key);
      CHECK(tensor_view(zoo.at("conj"), "zoo")->conjugated);
      CHECK_FALSE(tensor_view(zoo.at("c64"), "zoo")->conjugated);
    }
  }

  TEST_CASE("tensor_view: a view must lie inside its storage") {
    constexpr auto huge = std::numeric_limits<std::int64_t>::max();
    CHECK(parse_view(12, 0, {3, 4}, {4, 1}).is_contiguous());
    CHECK_FALSE(parse_view(12, 0, {4, 3}, {1, 4}).is_contiguous());
    CHECK(parse_view(12, 11, {}, {}).length_bytes() == 4);
    CHECK(parse_view(1, 0, {1000}, {0}).length_bytes() == 4000);
    CHECK(parse_view(0, 5, {0, 3}, {3, 1}).length_bytes() == 0);
    CHECK_THROWS_WITH_AS(parse_view(11, 0, {3, 4}, {4, 1}), doctest::Contains("past its storage"), FormatError);
    CHECK_THROWS_AS(parse_view(12, 1, {3, 4}, {4, 1}), FormatError);
    CHECK_THROWS_AS(parse_view(12, 12, {}, {}), FormatError);
    CHECK_THROWS_AS(parse_view(0, 0, {}, {}), FormatError);
    CHECK_THROWS_AS(parse_view(12, huge, {2}, {huge}), FormatError);
    CHECK_THROWS_AS(parse_view(12, 0, {5, 5}, {huge, huge}), FormatError);
    CHECK_THROWS_AS(parse_view(12, 0, {huge, huge}, {0, 0}), FormatError);
    CHECK_THROWS_AS(parse_view(huge, 0, {1}, {1}), FormatError);
    CHECK_THROWS_AS(parse_view(12, -1, {1}, {1}), FormatError);
    CHECK_THROWS_AS(parse_view(12, 2, {2}, {-1}), FormatError);
    CHECK_THROWS_AS(parse_view(12, 0, {-2}, {1}), FormatError);
    CHECK_THROWS_AS(parse_view(12, 0, {2, 2}, {1}), FormatError);
    CHECK_THROWS_AS(parse_view(12, 0, Shape(65, 1), Shape(65, 1)), FormatError);
  }

  TEST_CASE("TorchBlob: reads files without CRC-32, and refuses sparse tensors") {
    const TorchFile plain("pt_t211_nocrc");
    CHECK(compare_tensors(plain, SafetensorsReader(test::fixture("pt_t211_nocrc") / "expected.safetensors")) > 10);

    const TorchFile sparse("pt_t211_unsupported_sparse");
    const auto parse_all = [&] {
      for (const auto& [key, value] : sparse.dict().items) tensor_view(*value, sparse.path());
    };
    CHECK_THROWS_WITH_AS(parse_all(), doctest::Contains("_rebuild_sparse_tensor"), FormatError);
  }

  TEST_CASE("TorchBlob: a pickled module is read as names only, neither as tensor nor as value") {
    const TorchFile module("pt_t211_refuse_module");
    CHECK_FALSE(test::view_of(module.blob));
    CHECK_THROWS_WITH_AS(test::value_of(module.blob), doctest::Contains("torch.nn"), FormatError);
  }

  TEST_CASE("pickle_to_json: PyTorch's plain values") {
    const TorchFile values("pt_t211_nontensors");
    const auto at = [&](std::string_view key) { return pickle_to_json(values.at(key), "file"); };
    CHECK(at("int") == 7);
    CHECK(at("i31") == 2147483647);
    CHECK(at("i32p") == 2147483648ll);
    CHECK(at("i63") == std::numeric_limits<std::int64_t>::min());
    CHECK(at("float") == 0.1);
    CHECK(at("true") == true);
    CHECK(at("none") == nullptr);
    CHECK(at("str") == "h\u00e9llo \u4e2d\u6587 \U0001f600");
    CHECK(at("tuple4") == json{1, 2, 3, 4});
    CHECK(at("set") == json{1, 2, 3});
    CHECK(at("list") == json{1, {2, {3}}});
    CHECK(at("dict_int_keys") == json{{"1", "a"}, {"2", "b"}});
    CHECK(at("odict") == json{{"z", 1}, {"a", 2}});
    CHECK(at("defaultdict") == json{{"k", 1}});
    for (const auto* key : {"big", "bytes", "bytearray", "dtype", "complex"}) {
      CAPTURE(key);
      CHECK_THROWS_AS(at(key), FormatError);
    }
    CHECK(values.at("big").big_integer()->digits == "1208925819614629174706176");
  }

  TEST_CASE("TorchBlob: pickle protocol 4") {
    const TorchFile file("pt_t211_proto4");
    CHECK(file.dict().items.size() > 1);
  }
}
