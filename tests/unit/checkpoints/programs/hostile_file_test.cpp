// Archives, tensors and indexes with false numbers and names.
#include <doctest/doctest.h>

#include <array>

#include "tests/unit/checkpoints/programs/hostile_support.hpp"

using namespace fsdp;
using test::ZipSpec;

namespace {

constexpr std::size_t allowed_allocation = 16u << 20;
constexpr std::uint64_t huge = 1ull << 62;

void must_refuse(const std::filesystem::path& path) {
  test::reset_largest_allocation();
  const auto outcome = test::read_everything(path);
  CHECK(outcome.refused);
  CHECK(outcome.message.find(path.filename().string()) != std::string::npos);
  CHECK(test::largest_allocation() < allowed_allocation);
}

std::string small_tensor() {
  constexpr std::array<std::uint64_t, 1> sizes{2}, strides{1};
  return test::tensor_pickle(2, 0, sizes, strides);
}

std::string safetensors_file(std::string_view header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> 8 * i & 0xff));
  return file.append(header).append(data_bytes, '\0');
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  REQUIRE(from.size() == to.size());  // the lengths in the pickle must stay right
  bool found = false;
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
    found = true;
  }
  REQUIRE(found);
}

}  // namespace

TEST_SUITE("source/hostile_file") {
  TEST_CASE("the unchanged archive is valid") {
    test::TempDir directory;
    test::write_file(directory / "x.pt", test::torch_file(small_tensor(), std::array{std::string("12345678")}));
    const auto outcome = test::read_everything(directory / "x.pt");
    CHECK_MESSAGE(!outcome.refused, outcome.message);
    REQUIRE(outcome.tensors.size() == 1);
    CHECK(test::as_text(outcome.tensors.at("w").bytes) == "12345678");
    const std::string keys = test::PickleText().op(']').string("0").op('a').done();
    test::write_file(directory / "old.pt", test::legacy_file(small_tensor(), keys, {"\2\0\0\0\0\0\0\00012345678", 16}));
    const auto legacy = test::read_everything(directory / "old.pt");
    CHECK_MESSAGE(!legacy.refused, legacy.message);
    CHECK(legacy.tensors == outcome.tensors);
  }

  TEST_CASE("zip entries that overlap, repeat or have false numbers") {
    test::TempDir directory;
    const ZipSpec pickle{"x/data.pkl", small_tensor()};
    const ZipSpec storage{"x/data/0", "12345678"};
    const auto with = [](ZipSpec entry, auto change) {
      change(entry);
      return entry;
    };
    const std::vector<std::vector<ZipSpec>> archives{
        {pickle},                    // no storage
        {storage},                   // no pickle
        {pickle, storage, storage},  // one name twice
        {pickle, with(pickle, [](auto& e) { e.name = "y/data.pkl"; }), storage},
        {pickle, with(storage, [](auto& e) { e.directory_size = 1u << 30; })},
        {pickle, with(storage, [](auto& e) { e.directory_size = 7; })},
        {pickle, with(storage, [](auto& e) { e.directory_size = 0xffffffff; })},
        {pickle, with(storage, [](auto& e) { e.directory_offset = 0; })},   // header of the pickle
        {pickle, with(storage, [](auto& e) { e.directory_offset = 20; })},  // inside the entry of the pickle
        {pickle, with(storage, [](auto& e) { e.directory_offset = 0xfffffffe; })},
        {pickle, with(storage, [](auto& e) { e.method = 8; })},  // deflated
        {pickle, with(storage, [](auto& e) { e.flags |= 1; })},  // encrypted
        {pickle, with(storage, [](auto& e) { e.crc32 = 0x12345678; })},
        {with(pickle, [](auto& e) { e.crc32 = 1; }), storage},
    };
    for (std::size_t i = 0; i < archives.size(); ++i) {
      CAPTURE(i);
      test::write_file(directory / "x.pt", test::zip_file(archives[i]));
      must_refuse(directory / "x.pt");
    }
  }

  TEST_CASE("tensors larger than their storages") {
    test::TempDir directory;
    const std::array storages{std::string("12345678")};
    const std::string keys = test::PickleText().op(']').string("0").op('a').done();
    struct Claim {
      std::uint64_t numel, offset;
      std::vector<std::uint64_t> sizes, strides;
    };
    const auto minus = [](std::uint64_t value) { return ~value + 1; };
    const std::vector<Claim> claims{
        {huge, 0, {huge}, {1}},
        {2, 0, {huge}, {1}},
        {2, 0, {3}, {1}},
        {2, 0, {2}, {2}},
        {2, 1, {2}, {1}},
        {2, huge, {1}, {1}},
        {2, 0x7fffffffffffffff, {1}, {1}},
        {2, minus(1), {1}, {1}},
        {2, 0, {minus(1)}, {1}},
        {2, 1, {2}, {minus(1)}},
        {2, 0, {1ull << 32, 1ull << 32}, {0, 0}},
        {2, 0, {1ull << 33, 1ull << 33, 4}, {1, 1, 0}},
        {2, 0, {2, 2}, {huge, 1}},
        {2, 0, {2}, {0x7fffffffffffffff}},
        {2, 0, {2, 2}, {1}},
        {2, 0, {2}, {}},
        {minus(2), 0, {2}, {1}},
        {1ull << 61, 0, {2}, {1}},
    };
    for (std::size_t i = 0; i < claims.size(); ++i) {
      CAPTURE(i);
      const auto& c = claims[i];
      const auto pickle = test::tensor_pickle(c.numel, c.offset, c.sizes, c.strides);
      test::write_file(directory / "x.pt", test::torch_file(pickle, storages));
      must_refuse(directory / "x.pt");
      test::write_file(directory / "old.pt", test::legacy_file(pickle, keys, {"\2\0\0\0\0\0\0\00012345678", 16}));
      must_refuse(directory / "old.pt");
    }
    for (const char* key : {"1", "", "../0", "/etc/passwd", "data.pkl"}) {
      CAPTURE(key);
      constexpr std::array<std::uint64_t, 1> sizes{2}, strides{1};
      test::write_file(directory / "x.pt", test::torch_file(test::tensor_pickle(2, 0, sizes, strides, key), storages));
      must_refuse(directory / "x.pt");
    }
  }

  TEST_CASE("a view far larger than its storage is read in pieces only") {
    test::TempDir directory;
    constexpr std::array<std::uint64_t, 1> sizes{1ull << 40}, strides{0};
    test::write_file(directory / "x.pt",
                     test::torch_file(test::tensor_pickle(2, 0, sizes, strides), std::array{std::string("12345678")}));
    test::reset_largest_allocation();
    test::read_everything(directory / "x.pt");
    CHECK(test::largest_allocation() < allowed_allocation);
  }

  TEST_CASE("legacy storages with false numbers") {
    test::TempDir directory;
    const std::string good = test::PickleText().op(']').string("0").op('a').done();
    const std::string storage("\2\0\0\0\0\0\0\00012345678", 16);
    const auto refused = [&](const std::string& keys, const std::string& storages) {
      test::write_file(directory / "old.pt", test::legacy_file(small_tensor(), keys, storages));
      must_refuse(directory / "old.pt");
    };
    refused(test::PickleText().op(']').done(), storage);
    refused(test::PickleText().op('N').done(), storage);
    refused(test::PickleText().op(']').op('(').string("0").string("0").op('e').done(), storage + storage);
    refused(good, storage.substr(0, 12));
    refused(good, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "12345678");
    refused(good, std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "12345678");
    refused(good, std::string("\1\0\0\0\0\0\0\0", 8) + "12345678");
  }

  TEST_CASE("names of data files outside the checkpoint") {
    test::TempDir directory;
    const auto origin = test::fixture("dcp_t211_ws2_app") / "ckpt";
    std::filesystem::create_directories(directory / "a" / "ckpt");
    const auto checkpoint = directory / "a" / "ckpt";
    for (const auto& entry : std::filesystem::directory_iterator(origin)) {
      std::filesystem::copy_file(entry.path(), checkpoint / entry.path().filename());
    }
    // The files that the names refer to exist and are valid.
    std::filesystem::copy_file(origin / "__0_0.distcp", directory / "a" / "0.distcp");
    const std::string good = read_text_file(checkpoint / ".metadata");
    CHECK_FALSE(test::read_everything(checkpoint).refused);
    const std::string absolute = "/0.distcp\0\0\0";
    for (const std::string& name :
         {std::string("..//0.distcp"), std::string("./../0.distc"), std::string("x/../../0.di"),
          std::string("/etc/passwd/"), std::string("////////dev/"), std::string(".metadata\0\0\0", 12),
          std::string("../../../../"), std::string("............"), std::string(12, '\0')}) {
      CAPTURE(name);
      std::string bad = good;
      replace_all(bad, "__0_0.distcp", name);
      test::write_file(checkpoint / ".metadata", bad);
      const auto outcome = test::read_everything(checkpoint);
      CHECK(outcome.refused);
    }
  }

  TEST_CASE("an index of safetensors files with names outside its directory, or false entries") {
    test::TempDir directory;
    const std::string file = safetensors_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
    std::filesystem::create_directory(directory / "model");
    const auto model = directory / "model";
    test::write_file(directory / "outside.safetensors", file);
    test::write_file(model / "model-00001-of-00001.safetensors", file);
    const auto index = [&](const std::string& text) {
      test::write_file(model / "model.safetensors.index.json", text);
      test::reset_largest_allocation();
      const auto outcome = test::read_everything(model);
      CHECK(test::largest_allocation() < allowed_allocation);
      return outcome.refused;
    };
    CHECK_FALSE(index(R"({"metadata":{},"weight_map":{"a":"model-00001-of-00001.safetensors"}})"));
    CHECK(index(R"({"weight_map":{"a":"../outside.safetensors"}})"));
    CHECK(index(R"({"weight_map":{"a":")" + (directory / "outside.safetensors").string() + "\"}}"));
    CHECK(index(R"({"weight_map":{"a":"x/../../outside.safetensors"}})"));
    CHECK(index(R"({"weight_map":{"a":"model-00001-of-00001.safetensors\u0000"}})"));
    CHECK(index(R"({"weight_map":{"a":""}})"));
    CHECK(index(R"({"weight_map":{"a":"."}})"));
    CHECK(index(R"({"weight_map":{"a":7}})"));
    CHECK(index(R"({"weight_map":{"b":"model-00001-of-00001.safetensors"}})"));
    CHECK(index(R"({"weight_map":["a"]})"));
    CHECK(index(""));
    CHECK(index(std::string(100'000, '[')));
    CHECK(index(R"({"weight_map":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}"));
  }

  TEST_CASE("safetensors headers with false numbers") {
    test::TempDir directory;
    const auto refused = [&](const std::string& file) {
      test::write_file(directory / "x.safetensors", file);
      must_refuse(directory / "x.safetensors");
    };
    const auto header = [&](const std::string& text, std::size_t data = 8) {
      CAPTURE(text.substr(0, 200));
      refused(safetensors_file(text, data));
    };
    refused("");
    refused(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
    refused(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10));
    refused(std::string("\3\0\0\0\0\0\0\0{}", 10));
    header(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})");
    header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}})");
    header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})");
    header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})");
    header(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})");
    header(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})");
    header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})");
    header(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})");
    header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})");
    header(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})");
    header(
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})");
    header(
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})",
        7);
    header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9);
    header(R"({"a":{"shape":[2],"data_offsets":[0,8]}})");
    header(R"({"a":[]})");
    header(R"({"__metadata__":{"DCP_SHARDING_INFO":"["},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})");
    header(R"({"__metadata__":{"a":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})");
    header("[" + std::string(50'000, '[') + std::string(50'000, ']') + "]");
    header(R"({"a":)" + std::string(50'000, '{'));
    header("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}");
  }
}
