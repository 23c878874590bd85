#include "lib/base/types/dtype.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "lib/base/types/error.hpp"
#include "lib/formats/shard_record.hpp"

using namespace fsdp;

TEST_SUITE("formats/dtype") {
  TEST_CASE("dtype: every name parses to its type") {
    for (const auto& row : dtype_rows()) {
      const auto dtype = row.dtype;
      CAPTURE(row.torch);
      CHECK(dtype_from_torch(torch_name(dtype)) == dtype);
      if (!is_complex(dtype)) CHECK(dtype_from_safetensors(safetensors_name(dtype)) == dtype);
      if (!row.storage_class.empty()) CHECK(dtype_from_storage_class(row.storage_class) == dtype);
    }
    CHECK(dtype_size_bytes(DType::bf16) == 2);
    CHECK(dtype_size_bytes(DType::c128) == 16);
  }

  TEST_CASE("dtype: unknown names and complex safetensors are refused by name") {
    CHECK_THROWS_WITH_AS(safetensors_name(DType::c64), doctest::Contains("complex64"), RequestError);
    CHECK_THROWS_WITH_AS(dtype_from_torch("float33"), doctest::Contains("float33"), FormatError);
    CHECK_THROWS_AS(dtype_from_safetensors(""), FormatError);
    CHECK_THROWS_AS(dtype_from_safetensors("F4"), FormatError);
  }

  TEST_CASE("num_elements: 1 for scalars; overflow and negative sizes are refused") {
    CHECK(num_elements({}) == 1);
    CHECK(num_elements({3, 4}) == 12);
    const auto huge = std::numeric_limits<std::int64_t>::max();
    CHECK(num_elements({huge, 0, huge}) == 0);
    CHECK_THROWS_AS(num_elements({huge, 2}), FormatError);
    CHECK_THROWS_AS(num_elements({0, -1}), FormatError);
  }
}
