#include "lib/checkpoints/source/tensor_in_file.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "lib/formats/block.hpp"
#include "lib/formats/crc32.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

/// A storage of `elements` random float32 values in a file, after some other bytes.
struct StorageFile {
  explicit StorageFile(std::size_t elements) : bytes(test::random_bytes(elements * 4, 5)) {
    test::write_file(directory / "data", "12345" + std::string(test::as_text(bytes)));
    file = File::open_read(directory / "data");
  }
  TensorInFile view(Shape sizes, Shape strides, std::uint64_t offset) const {
    TensorInFile stored;
    stored.storage_begin_bytes = 5;
    stored.storage = 3;
    stored.crc32 = crc32(0, bytes);
    stored.view.dtype = DType::f32;
    stored.view.sizes = std::move(sizes);
    stored.view.strides = std::move(strides);
    stored.view.storage_offset = offset;
    stored.view.storage_bytes = bytes.size();
    return stored;
  }
  test::Bytes truth(const TensorView& view) const {
    test::Bytes out(view.length_bytes());
    copy_strided(view.sizes, view.strides, std::span(bytes).subspan(view.storage_offset * 4), out, 4);
    return out;
  }

  test::TempDir directory;
  test::Bytes bytes;
  File file;
};

}  // namespace

TEST_SUITE("source/tensor_in_file") {
  TEST_CASE("read_stored: reads any range of any view") {
    const StorageFile storage(4000);
    const std::vector<TensorInFile> views{
        storage.view({10, 20}, {20, 1}, 0),             // contiguous
        storage.view({10, 20}, {20, 1}, 77),            // with an offset
        storage.view({20, 10}, {1, 20}, 3),             // transposed
        storage.view({7, 5, 3}, {1, 21, 7}, 0),         // permuted
        storage.view({30}, {17}, 11),                   // every 17th
        storage.view({6, 4}, {0, 1}, 9),                // expanded
        storage.view({4, 6}, {1, 0}, 9),                // expanded along the last dim
        storage.view({5, 8}, {100, 1}, 40),             // cut out of a matrix
        storage.view({8, 8}, {1, 1}, 0),                // overlapping windows
        storage.view({2, 3, 4, 5}, {60, 1, 15, 3}, 2),  // channels last
        storage.view({1, 1, 9}, {5, 7, 2}, 1),
        storage.view({}, {}, 123),
        storage.view({3, 0, 2}, {0, 0, 0}, 0),
        storage.view({3}, {1999}, 1),  // far apart
    };
    for (const auto& stored : views) {
      const auto truth = storage.truth(stored.view);
      const auto total = truth.size() / 4;
      CAPTURE(stored.view.sizes.size());
      for (std::size_t first = 0; first <= total; first += std::max<std::size_t>(1, total / 13)) {
        for (std::size_t count = 0; first + count <= total; count += std::max<std::size_t>(1, total / 11)) {
          test::Bytes out(count * 4);
          read_stored(storage.file, stored, first, count, out, nullptr);
          CHECK(std::equal(out.begin(), out.end(), truth.begin() + static_cast<std::ptrdiff_t>(first * 4)));
        }
      }
    }
  }

  TEST_CASE("read_stored: reads views larger than the buffer") {
    const StorageFile storage(3 << 18);  // 3 MiB
    for (const auto& stored : {storage.view({768, 1024}, {1, 768}, 0), storage.view({1024, 256}, {768, 3}, 0),
                               storage.view({2, 1 << 18}, {0, 3}, 0), storage.view({3, 1 << 18}, {1, 3}, 0)}) {
      const auto truth = storage.truth(stored.view);
      test::Bytes out(truth.size());
      read_stored(storage.file, stored, 0, out.size() / 4, out, nullptr);
      CHECK(out == truth);
    }
  }

  TEST_CASE("read_stored: sums cover what was read") {
    const StorageFile storage(3 << 18);
    std::vector<ReadSum> sums;
    test::Bytes out(storage.bytes.size());
    const auto crc = read_stored(storage.file, storage.view({3 << 18}, {1}, 0), 0, 3 << 18, out, &sums);
    REQUIRE(crc.has_value());
    CHECK(*crc == crc32(0, storage.bytes));
    REQUIRE(sums.size() == 1);
    CHECK(sums[0].storage == 3);
    CHECK(sums[0].begin == 0);
    CHECK(sums[0].end == storage.bytes.size());
    CHECK(sums[0].crc32 == *crc);

    sums.clear();
    CHECK_FALSE(read_stored(storage.file, storage.view({768, 1024}, {1, 768}, 0), 0, 3 << 18, out, &sums).has_value());
    std::uint64_t at = 0;
    std::uint32_t combined = 0;
    for (const auto& sum : sums) {
      CHECK(sum.begin == at);
      combined = crc32_combine(combined, sum.crc32, sum.end - sum.begin);
      at = sum.end;
    }
    CHECK(at == storage.bytes.size());
    CHECK(combined == crc32(0, storage.bytes));
  }

  TEST_CASE("resolve_lazy_bits: conjugates and negates every kind of number") {
    const auto resolve = [](DType dtype, bool conjugated, bool negated, auto numbers) {
      TensorView view;
      view.dtype = dtype;
      view.conjugated = conjugated;
      view.negated = negated;
      resolve_lazy_bits(view, std::as_writable_bytes(std::span(numbers)));
      return numbers;
    };
    using Floats = std::array<float, 4>;
    CHECK(resolve(DType::c64, true, false, Floats{1, 2, -3, -4}) == Floats{1, -2, -3, 4});
    CHECK(resolve(DType::c64, true, true, Floats{1, 2, -3, -4}) == Floats{-1, 2, 3, -4});
    CHECK(resolve(DType::f32, false, true, Floats{1, 2, -3, 0.5f}) == Floats{-1, -2, 3, -0.5f});
    CHECK(resolve(DType::f32, true, false, Floats{1, 2, -3, -4}) == Floats{1, 2, -3, -4});
    using Doubles = std::array<double, 2>;
    CHECK(resolve(DType::c128, true, false, Doubles{1, 2}) == Doubles{1, -2});
    using Integers = std::array<std::int32_t, 4>;
    CHECK(resolve(DType::i32, false, true, Integers{0, 1, -7, 1 << 20}) == Integers{0, -1, 7, -(1 << 20)});
    using Bytes = std::array<std::int8_t, 3>;
    CHECK(resolve(DType::i8, false, true, Bytes{0, 1, -128}) == Bytes{0, -1, -128});
  }
}
