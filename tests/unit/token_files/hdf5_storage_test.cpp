#include "lib/formats/hdf5/hdf5_storage.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/hdf5/hdf5.hpp"
#include "lib/token_files/token_file_writer.hpp"
#include "tests/support/temp_files.hpp"

namespace {

using fsdp::test::TempDir;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

constexpr hsize_t kRows = 6, kLength = 4;

fsdp::Hdf5Space space_of(const std::vector<hsize_t>& shape, const hsize_t* most = nullptr) {
  return fsdp::Hdf5Space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), most));
}

/// `input_ids` [6, 4] with the layout that `set` makes; `rows` of it are written as 1, 2, 3, ...
/// \param version  HDF5's file format; versions index chunks differently
/// \param most     shape up to which the data set may grow; null: it may not
template <class Set>
void write_ids(const fs::path& file, hsize_t rows, const Set& set, const char* name = "input_ids",
               hid_t type = H5I_INVALID_HID, H5F_libver_t version = H5F_LIBVER_EARLIEST,
               const hsize_t* most = nullptr) {
  const fsdp::Hdf5Scope scope;
  if (type < 0) type = H5T_STD_U16LE;  // naming it initialises the library
  const fsdp::Hdf5Properties access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_libver_bounds(access.get(), version, H5F_LIBVER_V110);
  const fsdp::Hdf5File handle(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
  const fsdp::Hdf5Properties layout(H5Pcreate(H5P_DATASET_CREATE));
  set(layout.get());
  const auto space = space_of({kRows, kLength}, most);
  const fsdp::Hdf5Dataset dataset(
      H5Dcreate2(handle.get(), name, type, space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT));
  REQUIRE(dataset.get() >= 0);
  if (rows == 0) return;
  const std::vector<hsize_t> start{0, 0}, count{rows, kLength};
  std::vector<std::int64_t> ids(rows * kLength);
  std::iota(ids.begin(), ids.end(), 1);
  const auto memory = space_of(count);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
  REQUIRE(H5Dwrite(dataset.get(), H5T_NATIVE_INT64, memory.get(), space.get(), H5P_DEFAULT, ids.data()) >= 0);
}

void chunked(hid_t layout) {
  const std::vector<hsize_t> chunk{4, 3};  // neither length divides
  H5Pset_chunk(layout, 2, chunk.data());
}
void deflated(hid_t layout) {
  chunked(layout);
  H5Pset_deflate(layout, 6);
}
void contiguous(hid_t) {}

/// A virtual `input_ids` [12, 4] out of the data sets NAME:input_ids of `sources`, 6 rows each.
void write_virtual(const fs::path& file, const std::vector<std::string>& sources, hsize_t rows_each = kRows) {
  write_ids(file, 0, [&](hid_t layout) {
    const auto source = space_of({rows_each, kLength});
    const hsize_t parts = sources.size();
    for (hsize_t i = 0; i < parts; ++i) {
      const auto place = space_of({kRows, kLength});
      const std::vector<hsize_t> start{i * kRows / parts, 0}, count{kRows / parts, kLength}, origin{0, 0};
      H5Sselect_hyperslab(place.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
      H5Sselect_hyperslab(source.get(), H5S_SELECT_SET, origin.data(), nullptr, count.data(), nullptr);
      REQUIRE(H5Pset_virtual(layout, place.get(), sources[i].c_str(), "input_ids", source.get()) >= 0);
    }
  });
}

Ids read_all(const fs::path& file) {
  const auto rows = fsdp::open_token_file(file);
  std::vector<std::int64_t> which(static_cast<std::size_t>(rows->num_records()));
  std::iota(which.begin(), which.end(), 0);
  Ids ids(which.size() * static_cast<std::size_t>(rows->row_length()));
  rows->read_rows(which, ids);
  return ids;
}

void refused(const fs::path& file, const std::string& message) {
  CHECK_THROWS_WITH_AS(fsdp::open_token_file(file), doctest::Contains(message.c_str()), fsdp::FormatError);
}

}  // namespace

TEST_SUITE("dataset/hdf5_storage") {
  TEST_CASE("what was created but not written to its end is refused, in every layout") {
    TempDir dir;
    const auto file = dir / "a.h5";
    Ids all(kRows * kLength);
    std::iota(all.begin(), all.end(), 1);

    write_ids(file, 0, contiguous);
    refused(file, "a.h5: dataset 'input_ids' was created but never written: it would be read as zeros");
    const std::array<hsize_t, 2> unlimited{H5S_UNLIMITED, H5S_UNLIMITED};
    for (const auto set : {chunked, deflated}) {
      for (const auto version : {H5F_LIBVER_EARLIEST, H5F_LIBVER_V110}) {
        for (const auto* most : {static_cast<const hsize_t*>(nullptr), unlimited.data()}) {
          const auto write = [&](hsize_t rows) {
            write_ids(file, rows, set, "input_ids", H5I_INVALID_HID, version, most);
          };
          write(0);
          refused(file, "of 4 chunks only 0 are stored");
          write(4);
          refused(file, "of 4 chunks only 2 are stored, the others would be read as zeros");
          write(kRows);
          CHECK(read_all(file) == all);
        }
      }
    }
    write_ids(file, kRows, [](hid_t layout) { H5Pset_layout(layout, H5D_COMPACT); });
    CHECK(read_all(file) == all);
  }

  TEST_CASE("external storage is refused: it reads any file") {
    TempDir dir;
    fsdp::replace_file(dir / "secret", "0123456789abcdef");
    write_ids(dir / "a.h5", 0,
              [&](hid_t layout) { H5Pset_external(layout, (dir / "secret").c_str(), 0, H5F_UNLIMITED); });
    refused(dir / "a.h5", "dataset 'input_ids' keeps its values outside, in '" + (dir / "secret").string() + "'");
  }

  TEST_CASE("links are followed within the file only") {
    TempDir dir;
    write_ids(dir / "other.h5", kRows, contiguous);
    write_ids(dir / "a.h5", kRows, contiguous, "ids");
    {
      const fsdp::Hdf5Scope scope;
      const fsdp::Hdf5File handle(H5Fopen((dir / "a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
      H5Lcreate_soft("/ids", handle.get(), "input_ids", H5P_DEFAULT, H5P_DEFAULT);
    }
    CHECK(read_all(dir / "a.h5").back() == 24);
    for (const bool through_a_group : {false, true}) {
      const fsdp::Hdf5Scope scope;
      const fsdp::Hdf5File handle(H5Fcreate((dir / "a.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
      if (through_a_group) {
        H5Lcreate_external("other.h5", "/", handle.get(), "group", H5P_DEFAULT, H5P_DEFAULT);
        H5Lcreate_soft("/group/input_ids", handle.get(), "input_ids", H5P_DEFAULT, H5P_DEFAULT);
      } else {
        H5Lcreate_external("other.h5", "/input_ids", handle.get(), "input_ids", H5P_DEFAULT, H5P_DEFAULT);
      }
    }
    refused(dir / "a.h5",
            "dataset 'input_ids' is a link into another file, 'other.h5'; expected it in the file itself");
  }

  TEST_CASE("a virtual dataset with all its sources is read") {
    TempDir dir;
    fs::create_directory(dir / "parts");
    write_ids(dir / "parts" / "a.h5", kRows, deflated);
    write_ids(dir / "parts" / "b.h5", kRows, contiguous, "input_ids", H5T_STD_U8LE);
    // Relative names are relative to the file, here through a symlink, too; absolute ones fall back on that.
    write_virtual(dir / "parts" / "v.h5", {"a.h5", "/nowhere/b.h5"});
    fs::create_symlink("parts/v.h5", dir / "link.h5");
    const Ids expected{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    CHECK(read_all(dir / "parts" / "v.h5") == expected);
    CHECK(read_all(dir / "link.h5") == expected);

    write_virtual(dir / "v.h5", {"c.h5", "a.h5"});  // of which one is virtual itself
    write_virtual(dir / "c.h5", {"parts/a.h5", "parts/b.h5"});
    fs::copy(dir / "parts" / "a.h5", dir / "a.h5");
    CHECK(read_all(dir / "v.h5") == expected);
  }

  TEST_CASE("a virtual dataset is refused when a source is missing, short, empty, or a pipe") {
    TempDir dir;
    const auto file = dir / "v.h5";
    write_ids(dir / "a.h5", kRows, contiguous);
    write_virtual(file, {"a.h5", "b.h5"});
    refused(file, "v.h5: dataset 'input_ids' is virtual, and a source of it cannot be used: 'b.h5' is not there");
    REQUIRE(::mkfifo((dir / "b.h5").c_str(), 0600) == 0);
    refused(file, "b.h5: is no regular file");
    fs::remove(dir / "b.h5");
    fsdp::replace_file(dir / "b.h5", "no HDF5");
    refused(file, "b.h5: is not an HDF5 file");
    write_ids(dir / "b.h5", kRows, contiguous, "other");
    refused(file, "b.h5: cannot open dataset 'input_ids'");
    write_ids(dir / "b.h5", 4, chunked);
    refused(file, "b.h5: dataset 'input_ids' is not written to its end");
    write_ids(dir / "b.h5", kRows, contiguous, "input_ids", H5T_STD_I64LE);
    refused(file, "holds a wider type of integers");
    write_ids(dir / "b.h5", kRows, contiguous, "input_ids", H5T_IEEE_F32LE);
    refused(file, "holds floating-point numbers, expected integers");
    write_virtual(dir / "b.h5", {"b.h5"});
    refused(file, "8 files deep");
    write_virtual(dir / "b.h5", {"."});
    refused(file, "8 files deep");

    write_ids(dir / "whole.h5", 0, [](hid_t layout) {  // which takes all of a source, as h5py asks for it
      const auto place = space_of({kRows, kLength});
      const std::vector<hsize_t> start{0, 0}, count{2, kLength};
      H5Sselect_hyperslab(place.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
      REQUIRE(H5Pset_virtual(layout, place.get(), "a.h5", "input_ids", space_of(count).get()) >= 0);
    });
    refused(dir / "whole.h5", "a.h5: dataset 'input_ids' has 24 elements, expected 8");

    write_ids(dir / "b.h5", kRows, contiguous);
    CHECK(read_all(file).size() == 24);
    const auto smaller = fsdp::write_packed_rows(
        dir / "b.h5", 4, {.tokenizer = {}, .tokenizer_description = {}, .vocab_size = 9, .sources = {}});
    smaller->add(Ids(10, 1));
    CHECK(smaller->finish());
    refused(file, "b.h5: dataset 'input_ids' of shape [2, 4] is too small");
  }

  TEST_CASE("a virtual dataset is refused when no source has a part of it, or when it grows") {
    TempDir dir;
    write_ids(dir / "a.h5", kRows, contiguous);
    write_ids(dir / "v.h5", 0, [](hid_t layout) {
      const auto place = space_of({kRows, kLength}), source = space_of({kRows, kLength});
      const std::vector<hsize_t> start{0, 0}, count{kRows, 3};
      for (const auto* space : {&place, &source}) {
        H5Sselect_hyperslab(space->get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
      }
      for (int twice = 0; twice < 2; ++twice) {  // 36 elements for 24, and yet not all of them
        H5Pset_virtual(layout, place.get(), "a.h5", "input_ids", source.get());
      }
    });
    refused(dir / "v.h5", "none of its sources has 6 of its elements, which would be read as zeros");

    const fsdp::Hdf5Scope scope;
    fsdp::Hdf5File handle(H5Fcreate((dir / "v.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
    const fsdp::Hdf5Properties layout(H5Pcreate(H5P_DATASET_CREATE));
    const std::vector<hsize_t> shape{kRows, kLength}, most{H5S_UNLIMITED, kLength}, start{0, 0}, count{1, 1},
        block{H5S_UNLIMITED, kLength};
    const fsdp::Hdf5Space place(H5Screate_simple(2, shape.data(), most.data()));
    H5Sselect_hyperslab(place.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), block.data());
    REQUIRE(H5Pset_virtual(layout.get(), place.get(), "a.h5", "input_ids", place.get()) >= 0);
    fsdp::Hdf5Dataset dataset(
        H5Dcreate2(handle.get(), "input_ids", H5T_STD_U16LE, place.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT));
    REQUIRE(dataset.close() >= 0);
    REQUIRE(handle.close() >= 0);
    refused(dir / "v.h5", "so that nobody can tell whether something is missing");
  }

  TEST_CASE("documents: unwritten and virtual parts alike") {
    TempDir dir;
    const fsdp::Hdf5Scope scope;
    const auto write = [&](bool offsets_written) {
      const fsdp::Hdf5File handle(H5Fcreate((dir / "d.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
      const fsdp::Hdf5Properties layout(H5Pcreate(H5P_DATASET_CREATE));
      const hsize_t chunk = 2;
      H5Pset_chunk(layout.get(), 1, &chunk);
      const auto tokens = space_of({6}), offsets = space_of({3});
      const std::vector<std::int64_t> ids{5, 6, 7, 8, 9, 10}, ends{0, 2, 6};
      const fsdp::Hdf5Dataset a(
          H5Dcreate2(handle.get(), "tokens", H5T_STD_U16LE, tokens.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT));
      const fsdp::Hdf5Dataset b(
          H5Dcreate2(handle.get(), "offsets", H5T_STD_I64LE, offsets.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      const hsize_t first = 0, four = offsets_written ? 6 : 4;
      const auto memory = space_of({four});
      H5Sselect_hyperslab(tokens.get(), H5S_SELECT_SET, &first, nullptr, &four, nullptr);
      REQUIRE(H5Dwrite(a.get(), H5T_NATIVE_INT64, memory.get(), tokens.get(), H5P_DEFAULT, ids.data()) >= 0);
      REQUIRE(H5Dwrite(b.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, ends.data()) >= 0);
    };
    write(false);
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "d.h5"), doctest::Contains("dataset 'tokens' is not written"),
                         fsdp::FormatError);
    write(true);
    fsdp::Hdf5File handle(H5Fcreate((dir / "v.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
    for (const auto& [name, length] : {std::pair{"tokens", hsize_t{6}}, std::pair{"offsets", hsize_t{3}}}) {
      const fsdp::Hdf5Properties layout(H5Pcreate(H5P_DATASET_CREATE));
      const auto space = space_of({length});
      REQUIRE(H5Pset_virtual(layout.get(), space.get(), "d.h5", name, space.get()) >= 0);
      const fsdp::Hdf5Dataset dataset(
          H5Dcreate2(handle.get(), name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT));
    }
    REQUIRE(handle.close() >= 0);
    const auto documents = fsdp::open_token_file(dir / "v.h5");
    Ids ids(4);
    documents->read(1, ids);
    CHECK(ids == Ids{7, 8, 9, 10});
  }

  TEST_CASE("sizes of chunks are not believed before memory is asked for") {
    TempDir dir;
    const auto file = dir / "a.h5";
    write_ids(file, kRows, deflated);
    auto text = fsdp::read_text_file(file);
    // The layout message, version 3: 3, 2 (chunked), rank + 1, address of the index, then the lengths of a chunk.
    const std::string lengths("\x04\0\0\0\x03\0\0\0\x02\0\0\0", 12);
    const auto at = text.find(lengths);
    REQUIRE(at != std::string::npos);
    REQUIRE(text.find(lengths, at + 1) == std::string::npos);
    text.replace(at, 8, std::string("\0\0\0\x10\x07\0\0\0", 8));  // 2^28 x 7 ids of 2 bytes: 3.5 GiB
    fsdp::replace_file(file, text);
    refused(file, "a.h5: claims chunks of 3758096384 bytes, which a file of ");

    // The index, a B-tree: the key of a chunk is its size in the file, a mask of filters and its place.
    write_ids(file, kRows, deflated);
    text = fsdp::read_text_file(file);
    const auto tree = text.find(std::string("TREE\x01", 5));
    REQUIRE(tree != std::string::npos);
    text.replace(tree + 24, 4, std::string("\0\0\0\xf0", 4));
    fsdp::replace_file(file, text);
    CHECK_THROWS_WITH_AS(read_all(file), doctest::Contains("a.h5: a chunk of 4026531840 bytes where "),
                         fsdp::FormatError);
  }
}
