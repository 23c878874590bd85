#include "lib/token_files/token_file.hpp"

#include <array>

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/hdf5/hdf5.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/token_files/dataset_test_support.hpp"

namespace {

using fsdp::test::kShakespeare;
using fsdp::test::read_document;
using fsdp::test::TempDir;
using Ids = std::vector<std::int32_t>;
using Values = std::vector<std::int64_t>;

struct Part {
  const char* name;
  hid_t type;
  std::vector<hsize_t> shape;
  Values values;  ///< none: nothing is written, the space is not even allocated
  bool chunked = false;
};

/// Writes datasets of any type and name, for files that the reader must refuse.
void write_parts(const std::filesystem::path& file, const std::vector<Part>& parts) {
  const fsdp::Hdf5Scope scope;
  const fsdp::Hdf5File handle(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  for (const auto& part : parts) {
    const fsdp::Hdf5Space space(H5Screate_simple(static_cast<int>(part.shape.size()), part.shape.data(), nullptr));
    const fsdp::Hdf5Properties layout(H5Pcreate(H5P_DATASET_CREATE));
    const std::vector<hsize_t> chunk(part.shape.size(), 64);
    if (part.chunked) REQUIRE(H5Pset_chunk(layout.get(), static_cast<int>(chunk.size()), chunk.data()) >= 0);
    const fsdp::Hdf5Dataset dataset(
        H5Dcreate2(handle.get(), part.name, part.type, space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT));
    REQUIRE(dataset.get() >= 0);
    if (part.values.empty()) continue;
    REQUIRE(H5Dwrite(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, part.values.data()) >= 0);
  }
}

Part vector_of(const char* name, hid_t type, Values values) { return {name, type, {values.size()}, values}; }

}  // namespace

TEST_SUITE("dataset/token_documents") {
  TEST_CASE("reads whole documents and their beginnings, of any integer type") {
    TempDir dir;
    const fsdp::Hdf5Scope scope;
    for (const hid_t type : {H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_I32BE, H5T_STD_I64LE}) {
      write_parts(dir / "a.h5",
                  {vector_of("tokens", type, {5, 6, 7, 65535, 9}), vector_of("offsets", H5T_STD_I64LE, {0, 2, 2, 5})});
      const auto documents = fsdp::open_token_file(dir / "a.h5");
      CHECK(documents->num_records() == 3);
      CHECK(read_document(*documents, 0) == Ids{5, 6});
      CHECK(read_document(*documents, 1).empty());
      CHECK(read_document(*documents, 2) == Ids{7, 65535, 9});
      Ids two(2);
      documents->read(2, two);
      CHECK(two == Ids{7, 65535});

      Ids six(6);
      CHECK_THROWS_AS(documents->read(2, six), std::invalid_argument);
      CHECK_THROWS_AS(documents->read(3, two), std::out_of_range);
      CHECK_THROWS_AS(documents->read(-1, two), std::out_of_range);
    }
  }

  TEST_CASE("a stored id that is negative or too large is named, never clipped") {
    TempDir dir;
    const fsdp::Hdf5Scope scope;
    write_parts(dir / "a.h5", {vector_of("tokens", H5T_STD_I64LE, {1, -1, 2, 4294967296}),
                               vector_of("offsets", H5T_STD_I64LE, {0, 2, 4})});
    const auto documents = fsdp::open_token_file(dir / "a.h5");
    CHECK_THROWS_WITH_AS(read_document(*documents, 0), doctest::Contains("document 0, position 1: token id -1"),
                         fsdp::FormatError);
    CHECK_THROWS_WITH_AS(read_document(*documents, 1), doctest::Contains("document 1, position 1: token id 4294967296"),
                         fsdp::FormatError);
  }

  TEST_CASE("a mask says which ids count; without one all do") {
    TempDir dir;
    const fsdp::Hdf5Scope scope;
    const auto tokens = vector_of("tokens", H5T_STD_U16LE, {1, 2, 3, 4, 5});
    const auto offsets = vector_of("offsets", H5T_STD_I64LE, {0, 2, 2, 5});
    write_parts(dir / "a.h5", {tokens, offsets});
    write_parts(dir / "b.h5", {tokens, offsets, vector_of("loss_mask", H5T_STD_U8LE, {0, 1, 0, 1, 1})});
    const auto plain_file = fsdp::open_token_file(dir / "a.h5"), masked_file = fsdp::open_token_file(dir / "b.h5");
    const auto &plain = *plain_file, &masked = *masked_file;
    std::vector<std::uint8_t> two(2);
    CHECK(!plain.has_loss_mask());
    CHECK(masked.has_loss_mask());
    plain.read_loss_mask(2, two);
    CHECK(two == std::vector<std::uint8_t>{1, 1});
    masked.read_loss_mask(2, two);
    CHECK(two == std::vector<std::uint8_t>{0, 1});
    masked.read_loss_mask(0, two);
    CHECK(two == std::vector<std::uint8_t>{0, 1});
    CHECK_THROWS_AS(masked.read_loss_mask(1, two), std::invalid_argument);
    write_parts(dir / "c.h5", {tokens, offsets, vector_of("loss_mask", H5T_STD_I8LE, {0, -1, 0, 1, 1})});
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "c.h5")->read_loss_mask(0, two),
                         doctest::Contains("loss_mask is -1 at 1 behind [0], expected 0 or 1"), fsdp::FormatError);
  }

  TEST_CASE("a mask of truth values, as h5py writes them; what other programs say beside the ids is found") {
    TempDir dir;
    const fsdp::Hdf5Scope scope;
    const auto tokens = vector_of("tokens", H5T_STD_U16LE, {1, 2, 3});
    const auto offsets = vector_of("offsets", H5T_STD_I64LE, {0, 3});
    const fsdp::Hdf5Type truth(H5Tenum_create(H5T_STD_I8LE));
    const std::int8_t no = 0, yes = 1;
    H5Tenum_insert(truth.get(), "FALSE", &no);
    H5Tenum_insert(truth.get(), "TRUE", &yes);
    write_parts(dir / "a.h5", {tokens, offsets, vector_of("labels", H5T_STD_I64LE, {-100, 2, 3})});
    CHECK(fsdp::open_token_file(dir / "a.h5")->unread() == std::vector<std::string>{"labels"});
    {
      const fsdp::Hdf5File file(H5Fopen((dir / "a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
      const hsize_t three = 3;
      const fsdp::Hdf5Space space(H5Screate_simple(1, &three, nullptr));
      const fsdp::Hdf5Dataset mask(
          H5Dcreate2(file.get(), "loss_mask", truth.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      const std::array<std::int8_t, 3> values{0, 1, 1};
      REQUIRE(H5Dwrite(mask.get(), truth.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
    }
    std::vector<std::uint8_t> two(2);
    fsdp::open_token_file(dir / "a.h5")->read_loss_mask(0, two);
    CHECK(two == std::vector<std::uint8_t>{0, 1});
    CHECK(fsdp::open_token_file(dir / "a.h5")->unread().empty());
  }

  TEST_CASE("what is wrong with a file is named with what was expected") {
    TempDir dir;
    const fsdp::Hdf5Scope scope;
    const auto file = dir / "a.h5";
    const auto tokens = vector_of("tokens", H5T_STD_U16LE, {1, 2, 3});
    const auto refused = [&](const std::vector<Part>& parts) -> std::string {
      write_parts(file, parts);
      try {
        fsdp::open_token_file(file);
      } catch (const fsdp::FormatError& error) {
        return error.what();
      }
      return "opened";
    };
    const auto offsets = [&](const Values& values) {
      return refused({tokens, vector_of("offsets", H5T_STD_I64LE, values)});
    };
    const auto contains = [](const std::string& text, const std::string& part) {
      CAPTURE(text);
      CHECK(text.find(part) != std::string::npos);
    };
    CHECK(offsets({0, 3}) == "opened");
    contains(offsets({1, 3}), "a.h5: offsets[0] is 1, expected 0");
    contains(offsets({0, 2, 1, 3}), "offsets[2] is 1, expected 2 or more");
    contains(offsets({0, -5, 3}), "offsets[1] is -5, expected 0 or more");
    contains(offsets({0, 2}), "offsets[1] is 2, expected 3, the number of tokens");
    contains(offsets({0, 4}), "offsets[1] is 4, expected 3, the number of tokens");
    contains(offsets({0}), "offsets[0] is 0, expected 3, the number of tokens");
    const auto rows = [&](const Values& values) {
      return refused(
          {tokens, vector_of("offsets", H5T_STD_I64LE, {0, 1, 3}), vector_of("row_offsets", H5T_STD_I64LE, values)});
    };
    CHECK(rows({0, 1, 2}) == "opened");
    contains(rows({0, 1}), "a.h5: row_offsets[1] is 1, expected 2, the number of documents");
    contains(rows({0, 2, 1, 2}), "row_offsets[2] is 1, expected 2 or more");
    CHECK(refused({tokens}) == "opened");  // a stream
    contains(refused({}), "holds nothing, expected");
    contains(refused({tokens, {"offsets", H5T_STD_I64LE, {0}, {}}}), "'offsets'");
    contains(refused({tokens, {"offsets", H5T_IEEE_F64LE, {2}, {0, 3}}}), "'offsets' holds floating-point numbers");
    contains(refused({{"tokens", H5T_STD_U16LE, {1, 3}, {1, 2, 3}}, {"offsets", H5T_STD_I64LE, {2}, {0, 3}}}),
             "'tokens' has 2 dimensions");
  }

  TEST_CASE("claimed sizes beyond the file are refused before anything is allocated") {
    TempDir dir;
    const fsdp::Hdf5Scope scope;
    const hsize_t huge = hsize_t{1} << 50;
    write_parts(dir / "a.h5", {vector_of("tokens", H5T_STD_U16LE, {1}), {"offsets", H5T_STD_I64LE, {huge}, {}, true}});
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "a.h5"),
                         doctest::Contains("'offsets' is not written to its end: of 17592186044416 chunks only 0"),
                         fsdp::FormatError);
    write_parts(dir / "a.h5",
                {{"tokens", H5T_STD_U16LE, {huge}, {}, true}, vector_of("offsets", H5T_STD_I64LE, {0, 1})});
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "a.h5"), doctest::Contains("'tokens' is not written to its end"),
                         fsdp::FormatError);
  }

  TEST_CASE("cut files and flipped bytes end in an exception or in documents, not in a crash") {
    TempDir dir;
    {
      const fsdp::Hdf5Scope scope;
      Values ids(500), offsets;
      for (std::int64_t i = 0; i <= 50; ++i) offsets.push_back(i * 10);
      write_parts(dir / "a.h5",
                  {{"tokens", H5T_STD_U16LE, {500}, ids, true}, vector_of("offsets", H5T_STD_I64LE, offsets)});
    }
    const auto whole = fsdp::read_text_file(dir / "a.h5");
    int refused = 0;
    const auto attempt = [&](const std::string& content) {
      fsdp::File::create(dir / "b.h5").write(std::string_view(content));
      try {
        const auto documents = fsdp::open_token_file(dir / "b.h5");
        for (std::int64_t i = 0; i < documents->num_records(); ++i) read_document(*documents, i);
      } catch (const fsdp::FormatError& error) {
        CHECK(std::string(error.what()).find("b.h5") != std::string::npos);
        ++refused;
      }
    };
    for (std::size_t size = 0; size < whole.size(); size += 97) attempt(whole.substr(0, size));
    const int cut = refused;
    CHECK(cut == static_cast<int>((whole.size() + 96) / 97));
    for (std::size_t at = 0; at < whole.size(); at += 5) {
      auto damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
      attempt(damaged);
    }
    CHECK(refused > cut + 20);
  }

  TEST_CASE("several threads read one file at once") {
    TempDir dir;
    {
      const fsdp::Hdf5Scope scope;
      write_parts(dir / "a.h5",
                  {vector_of("tokens", H5T_STD_U16LE, {1, 2, 3}), vector_of("offsets", H5T_STD_I64LE, {0, 1, 3})});
    }
    const auto documents = fsdp::open_token_file(dir / "a.h5");
    std::vector<int> good(4);
    std::vector<std::thread> threads;
    for (auto& count : good) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) count += read_document(*documents, 1) == Ids{2, 3} ? 1 : 0;
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(good == std::vector<int>{50, 50, 50, 50});
  }

  TEST_CASE("a token file is one by its name or by its first bytes") {
    TempDir dir;
    {
      const fsdp::Hdf5Scope scope;
      write_parts(dir / "d.h5", {vector_of("tokens", H5T_STD_U16LE, {1}), vector_of("offsets", H5T_STD_I64LE, {0, 1})});
      write_parts(dir / "x.h5", {vector_of("tokens", H5T_STD_U16LE, {1})});
    }
    CHECK_FALSE(fsdp::open_token_file(kShakespeare)->has_documents());
    CHECK(fsdp::open_token_file(dir / "d.h5")->has_documents());
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "x.h5"), doctest::Contains("x.h5: holds one id"),
                         fsdp::FormatError);
    fsdp::replace_file(dir / "t", "text");
    fsdp::replace_file(dir / "t.hdf5", "text");
    CHECK_THROWS_AS(fsdp::open_token_file(dir / "t"), fsdp::FormatError);
    CHECK_THROWS_AS(fsdp::open_token_file(dir / "none"), fsdp::IoError);
    CHECK_THROWS_AS(fsdp::open_token_file(dir.path()), fsdp::FormatError);

    std::filesystem::rename(dir / "d.h5", dir / "d");
    CHECK(fsdp::is_token_file(kShakespeare));
    CHECK(fsdp::is_token_file(dir / "d"));
    CHECK(fsdp::is_token_file(dir / "t.hdf5"));
    CHECK_FALSE(fsdp::is_token_file(dir / "t"));
    CHECK_FALSE(fsdp::is_token_file(dir / "none"));
    CHECK_FALSE(fsdp::is_token_file(dir.path()));
  }
}
