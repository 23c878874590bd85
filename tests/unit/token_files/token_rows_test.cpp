#include "lib/token_files/token_file.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/hdf5/hdf5.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/token_files/dataset_test_support.hpp"

namespace {

/// Writes a dataset of any type and name, for files that the reader must refuse.
void write_dataset(const std::filesystem::path& file, const char* name, hid_t type, std::vector<hsize_t> shape,
                   const void* values = nullptr) {
  const fsdp::Hdf5Scope scope;
  const fsdp::Hdf5File handle(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  const fsdp::Hdf5Space space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr));
  const fsdp::Hdf5Dataset dataset(
      H5Dcreate2(handle.get(), name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  REQUIRE(dataset.get() >= 0);
  if (values != nullptr) REQUIRE(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
}

std::vector<std::int32_t> read_rows(const fsdp::TokenFile& rows, const std::vector<std::int64_t>& which) {
  std::vector<std::int32_t> out(which.size() * static_cast<std::size_t>(rows.row_length()));
  rows.read_rows(which, out);
  return out;
}

using fsdp::test::kShakespeare;
using Ids = std::vector<std::int32_t>;

}  // namespace

TEST_SUITE("dataset/token_rows") {
  TEST_CASE("rows: reads the shipped Shakespeare rows") {
    const auto rows = fsdp::open_token_file(kShakespeare);
    Ids row(256);
    rows->read(0, row);

    CHECK(rows->num_records() == 1174);
    CHECK(rows->row_length() == 256);
    CHECK(Ids(row.begin(), row.begin() + 10) == Ids{5962, 22307, 25, 198, 8421, 356, 5120, 597, 2252, 11});
  }

  TEST_CASE("read_rows: any order, repeats and runs of neighbours") {
    const fsdp::test::TempDir dir;
    std::vector<std::uint16_t> ids(12);
    std::iota(ids.begin(), ids.end(), std::uint16_t{65524});  // up to 65535: no sign extension
    write_dataset(dir.path() / "a.h5", "input_ids", H5T_NATIVE_UINT16, {4, 3}, ids.data());

    const auto rows = fsdp::open_token_file(dir.path() / "a.h5");
    CHECK(read_rows(*rows, {2, 3, 0, 0}) ==
          Ids{65530, 65531, 65532, 65533, 65534, 65535, 65524, 65525, 65526, 65524, 65525, 65526});
    CHECK(read_rows(*rows, {}).empty());
  }

  TEST_CASE("read_rows: uint32, int32 and int64 files read alike") {
    const fsdp::test::TempDir dir;
    const std::vector<std::uint32_t> ids{0, 70000, 2147483647, 5};
    const std::vector<std::int64_t> wide(ids.begin(), ids.end());
    write_dataset(dir.path() / "u32.h5", "input_ids", H5T_NATIVE_UINT32, {2, 2}, ids.data());
    write_dataset(dir.path() / "i32.h5", "input_ids", H5T_NATIVE_INT32, {2, 2}, ids.data());
    write_dataset(dir.path() / "i64.h5", "input_ids", H5T_NATIVE_INT64, {2, 2}, wide.data());

    for (const auto* name : {"u32.h5", "i32.h5", "i64.h5"}) {
      CAPTURE(name);
      CHECK(read_rows(*fsdp::open_token_file(dir.path() / name), {0, 1}) == Ids{0, 70000, 2147483647, 5});
    }
  }

  TEST_CASE("read_rows: a negative or too large stored id is named, never clipped") {
    const fsdp::test::TempDir dir;
    const std::vector<std::int64_t> ids{1, 2, 3, 4, 5, -100};
    write_dataset(dir.path() / "negative.h5", "input_ids", H5T_NATIVE_INT64, {2, 3}, ids.data());
    const std::vector<std::uint32_t> large{1, 4000000000u};
    write_dataset(dir.path() / "large.h5", "input_ids", H5T_NATIVE_UINT32, {1, 2}, large.data());

    CHECK_THROWS_WITH_AS(read_rows(*fsdp::open_token_file(dir.path() / "negative.h5"), {0, 1}),
                         doctest::Contains("negative.h5: row 1, position 2: token id -100 is not in"),
                         fsdp::FormatError);
    CHECK_THROWS_WITH_AS(read_rows(*fsdp::open_token_file(dir.path() / "large.h5"), {0}),
                         doctest::Contains("row 0, position 1: token id 4000000000"), fsdp::FormatError);
  }

  TEST_CASE("read_rows: a row past the end or a wrong buffer is a bug") {
    const auto rows = fsdp::open_token_file(kShakespeare);
    Ids out(256), wide(257);

    CHECK_THROWS_AS(rows->read(1174, out), std::out_of_range);
    CHECK_THROWS_AS(rows->read(-1, out), std::out_of_range);
    CHECK_THROWS_AS(rows->read(0, std::span(wide)), std::invalid_argument);
  }

  TEST_CASE("rows: what is wrong with a file is named with what was expected") {
    const fsdp::test::TempDir dir;
    const auto file = dir.path() / "bad.h5";
    const auto open = [&] { fsdp::open_token_file(file); };
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("No such file"), fsdp::IoError);

    fsdp::replace_file(file, "tokens, honestly");
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("bad.h5: is not an HDF5 file"), fsdp::FormatError);

    write_dataset(file, "tokens", H5T_NATIVE_UINT16, {2, 4});
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("dataset 'tokens' has 2 dimensions"), fsdp::FormatError);

    write_dataset(file, "input_ids", H5T_NATIVE_FLOAT, {2, 4});
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("holds floating-point numbers, expected"), fsdp::FormatError);

    write_dataset(file, "input_ids", H5T_NATIVE_UINT16, {8});
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("has 1 dimensions, expected"), fsdp::FormatError);

    write_dataset(file, "input_ids", H5T_NATIVE_UINT16, {0, 4});
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("[0, 4] has no rows"), fsdp::FormatError);

    write_dataset(file, "input_ids", H5T_NATIVE_UINT16, {4, 1});
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("[4, 1] has rows too short"), fsdp::FormatError);
  }

  TEST_CASE("rows: a truncated file is refused with the library's reason and nothing else is printed") {
    const fsdp::test::TempDir dir;
    const auto text = fsdp::read_text_file(kShakespeare);
    fsdp::replace_file(dir.path() / "cut.h5", std::string_view(text).substr(0, text.size() / 2));

    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir.path() / "cut.h5"), doctest::Contains("truncated file"),
                         fsdp::FormatError);
  }

  TEST_CASE("a file that changes under its reader is refused by name, not read as zeros or as other ids") {
    using namespace std::chrono_literals;
    const fsdp::test::TempDir dir;
    const auto file = dir.path() / "a.h5";
    std::vector<std::uint16_t> ids(4000);
    std::iota(ids.begin(), ids.end(), std::uint16_t{0});
    const std::vector<std::int64_t> offsets{0, 1000, 4000};
    const auto write = [&](bool documents) {
      if (!documents) return write_dataset(file, "input_ids", H5T_NATIVE_UINT16, {40, 100}, ids.data());
      const fsdp::Hdf5Scope scope;
      const fsdp::Hdf5File handle(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
      const auto add = [&](const char* name, hid_t type, hsize_t size, const void* values) {
        const fsdp::Hdf5Space space(H5Screate_simple(1, &size, nullptr));
        const fsdp::Hdf5Dataset dataset(
            H5Dcreate2(handle.get(), name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        REQUIRE(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
      };
      add("tokens", H5T_NATIVE_UINT16, ids.size(), ids.data());
      add("offsets", H5T_NATIVE_INT64, offsets.size(), offsets.data());
    };
    for (const bool documents : {false, true}) {
      CAPTURE(documents);
      write(documents);
      const auto time = std::filesystem::last_write_time(file);
      const auto bytes = fsdp::read_text_file(file);
      const auto tokens = fsdp::open_token_file(file);
      Ids read(100);
      const auto read_it = [&] { tokens->read(1, read); };
      CHECK_NOTHROW(read_it());
      std::filesystem::last_write_time(file, time + 1s);  // of a file system that settles
      CHECK_NOTHROW(read_it());
      std::filesystem::last_write_time(file, time + 1h);
      CHECK_THROWS_WITH_AS(read_it(), doctest::Contains((file.string() + ": has changed").c_str()), fsdp::FormatError);
      std::filesystem::last_write_time(file, time);
      CHECK_NOTHROW(read_it());
      std::filesystem::resize_file(file, bytes.size() + 1);
      const auto sizes = std::to_string(bytes.size()) + " bytes and has " + std::to_string(bytes.size() + 1);
      CHECK_THROWS_WITH_AS(read_it(), doctest::Contains(sizes.c_str()), fsdp::FormatError);
      std::filesystem::resize_file(file, 1000);
      CHECK_THROWS_WITH_AS(read_it(), doctest::Contains(file.c_str()), fsdp::FormatError);
      if (!documents) CHECK_THROWS_AS(read_rows(*tokens, {0, 3}), fsdp::FormatError);
      std::filesystem::remove(file);
      write(documents);
      const auto again = fsdp::open_token_file(file);
      std::filesystem::remove(file);  // the open file stays
      CHECK_NOTHROW(again->read(1, read));
    }
  }

  TEST_CASE("rows: several processes and threads read one file at once") {
    const auto here = fsdp::open_token_file(kShakespeare);
    std::vector<pid_t> children;
    for (int i = 0; i < 3; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        const auto rows = fsdp::open_token_file(kShakespeare);
        Ids row(256);
        rows->read(1173, row);
        ::_exit(0);
      }
      children.push_back(pid);
    }
    std::array<Ids, 4> found;
    {
      std::vector<std::jthread> threads;
      for (auto& ids : found) {
        threads.emplace_back([&] {
          for (int i = 0; i < 200; ++i) ids = read_rows(*fsdp::open_token_file(kShakespeare), {i, 1173 - i});
        });
      }
    }

    for (const auto& ids : found) CHECK(ids == read_rows(*here, {199, 974}));
    for (const pid_t pid : children) {
      int status = 1;
      ::waitpid(pid, &status, 0);
      CHECK(status == 0);
    }
  }

  TEST_CASE("check_token_ids: names row, position, id and vocabulary") {
    const Ids ids{0, 1, 2, 49, 50, 3};
    const std::vector<std::int64_t> rows{17, 4};

    CHECK_NOTHROW(fsdp::check_token_ids(ids, 51, "t.h5", rows));
    CHECK_THROWS_WITH_AS(
        fsdp::check_token_ids(ids, 50, "t.h5", rows),
        doctest::Contains("t.h5: row 4, position 1: token id 50 is outside the model's vocabulary of 50"),
        fsdp::FormatError);
    CHECK_THROWS_AS(fsdp::check_token_ids(Ids{0, -1}, 50, "t.h5", std::vector<std::int64_t>{0}), fsdp::FormatError);
  }
}
