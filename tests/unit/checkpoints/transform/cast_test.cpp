#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "lib/base/types/index.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/transform/cast.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

constexpr DType kFloats[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3fn, DType::f8_e5m2};

test::Bytes pack(DType dtype, const std::vector<std::uint64_t>& patterns) {
  test::Bytes bytes(patterns.size() * dtype_size_bytes(dtype));
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    std::memcpy(bytes.data() + i * dtype_size_bytes(dtype), &patterns[i], dtype_size_bytes(dtype));
  }
  return bytes;
}

test::Bytes converted(DType from, DType to, const test::Bytes& in) {
  test::Bytes out(in.size() / dtype_size_bytes(from) * dtype_size_bytes(to));
  FloatConverter(from, to).convert(in, out);
  return out;
}

std::span<const std::byte> element(const test::Bytes& bytes, DType dtype, std::size_t i) {
  return std::span(bytes).subspan(i * dtype_size_bytes(dtype), dtype_size_bytes(dtype));
}

double number(DType dtype, std::span<const std::byte> bytes) { return float_to_double(dtype_row(dtype).format, bytes); }
bool is_nan(DType dtype, std::span<const std::byte> bytes) { return std::isnan(number(dtype, bytes)); }

bool is_negative(DType dtype, std::span<const std::byte> bytes) { return std::signbit(number(dtype, bytes)); }

}  // namespace

TEST_SUITE("convert/cast") {
  TEST_CASE("FloatConverter: PyTorch's and numpy's results, bit for bit") {
    const auto file = std::filesystem::path(FSDP_FIXTURE_DIR).parent_path() / "unit" / "checkpoints" / "transform" /
                      "cast_values.json";
    const auto pairs = nlohmann::json::parse(read_text_file(file));
    CHECK(pairs.size() == 27);
    for (const auto& pair : pairs) {
      const auto from = dtype_from_torch(pair.at("from").get<std::string>());
      const auto to = dtype_from_torch(pair.at("to").get<std::string>());
      CAPTURE(pair.at("from"));
      CAPTURE(pair.at("to"));
      const auto in = pack(from, pair.at("in").get<std::vector<std::uint64_t>>());
      const auto wanted = pack(to, pair.at("out").get<std::vector<std::uint64_t>>());
      const auto found = converted(from, to, in);
      REQUIRE(found.size() == wanted.size());
      for (std::size_t i = 0; i < pair.at("in").size(); ++i) {
        CAPTURE(pair.at("in")[i]);
        if (is_nan(to, element(wanted, to, i))) {
          CHECK(is_nan(to, element(found, to, i)));
        } else {
          CHECK(std::ranges::equal(element(found, to, i), element(wanted, to, i)));
        }
      }
    }
  }

  TEST_CASE("FloatConverter: every value of one or two bytes survives a wider type") {
    for (const auto narrow : {DType::f16, DType::bf16, DType::f8_e4m3fn, DType::f8_e5m2}) {
      std::vector<std::uint64_t> patterns(std::size_t{1} << (8 * dtype_size_bytes(narrow)));
      for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = i;
      const auto all = pack(narrow, patterns);
      for (const auto wide : {DType::f32, DType::f64}) {
        const auto there = converted(narrow, wide, all);
        const auto back = converted(wide, narrow, there);
        std::size_t different = 0, nans = 0;
        for (std::size_t i = 0; i < patterns.size(); ++i) {
          const bool nan = is_nan(narrow, element(all, narrow, i));
          nans += nan;
          different += nan != is_nan(wide, element(there, wide, i)) ||
                       is_negative(narrow, element(all, narrow, i)) != is_negative(narrow, element(back, narrow, i));
          if (nan) {
            different += !is_nan(narrow, element(back, narrow, i));
          } else {
            different += !std::ranges::equal(element(all, narrow, i), element(back, narrow, i));
          }
        }
        CHECK(different == 0);
        CHECK(nans == (narrow == DType::f16       ? 2046u
                       : narrow == DType::bf16    ? 254u
                       : narrow == DType::f8_e5m2 ? 6u
                                                  : 2u));
      }
    }
  }

  TEST_CASE("FloatConverter: the fast paths round like the general one") {
    std::mt19937_64 generator(7);
    std::vector<std::uint64_t> patterns;
    for (int i = 0; i < 500'000; ++i) patterns.push_back(generator() & 0xffffffffu);
    // Around the midpoints between neighbours of f16 and bf16, in the range of f16.
    for (int i = 0; i < 500'000; ++i) {
      const auto exponent = 100 + generator() % 45, mantissa = generator() & 0x7fffff;
      const auto middle = (i % 2 == 0 ? mantissa & ~0x1fffull : mantissa & ~0xffffull) | (i % 2 == 0 ? 0x1000 : 0x8000);
      patterns.push_back((generator() & 1) << 31 | exponent << 23 | ((middle + generator() % 3 - 1) & 0x7fffff));
    }
    const auto in = pack(DType::f32, patterns);
    const auto wide = converted(DType::f32, DType::f64, in);
    CHECK(converted(DType::f64, DType::f32, wide).size() == in.size());
    for (const auto to : {DType::f16, DType::bf16}) {
      const auto quick = converted(DType::f32, to, in), general = converted(DType::f64, to, wide);
      std::size_t different = 0;
      for (std::size_t i = 0; i < patterns.size(); ++i) {
        if (is_nan(to, element(general, to, i))) {
          different += !is_nan(to, element(quick, to, i)) ||
                       is_negative(to, element(general, to, i)) != is_negative(to, element(quick, to, i));
        } else {
          different += !std::ranges::equal(element(quick, to, i), element(general, to, i));
        }
      }
      CHECK(different == 0);
    }
  }

  TEST_CASE("FloatConverter: a double is rounded once") {
    // Just above the midpoint of two bfloat16 values. Through float32 it would become the midpoint and round to even,
    // down.
    const auto above = test::bytes_of<double>({1.0 + 0x1p-8 + 0x1p-40, 1.0 + 0x1p-8, 1.0 + 3 * 0x1p-8});
    CHECK(test::values_of<std::uint16_t>(converted(DType::f64, DType::bf16, above)) ==
          std::vector<std::uint16_t>{0x3f81, 0x3f80, 0x3f82});
    const auto half = test::bytes_of<double>({1.0 + 0x1p-11 + 0x1p-40, 65520.0, 65519.999, 0x1p-25, 0x1.0000001p-25});
    CHECK(test::values_of<std::uint16_t>(converted(DType::f64, DType::f16, half)) ==
          std::vector<std::uint16_t>{0x3c01, 0x7c00, 0x7bff, 0x0000, 0x0001});
    // f8_e4m3fn has no infinity: a value that rounds beyond 448 is NaN.
    const auto large = test::bytes_of<double>({448, 464, 464.001, -1e300, INFINITY});
    CHECK(test::values_of<std::uint8_t>(converted(DType::f64, DType::f8_e4m3fn, large)) ==
          std::vector<std::uint8_t>{0x7e, 0x7e, 0x7f, 0xff, 0x7f});
  }

  TEST_CASE("cast: converts only the floating-point tensors of the model") {
    auto source = std::make_shared<test::MemorySource>();
    std::vector<float> values(200'000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 3;
    source->add("model.w", DType::f32, {200, 1000}, test::bytes_of(values), {"model", "w"});
    source->add("model.n", DType::i64, {}, test::bytes_of<std::int64_t>({5}), {"model", "n"});
    source->add("model.h", DType::bf16, {1}, test::bytes_of<std::uint16_t>({0x3f80}), {"model", "h"});
    source->add("optim.state.w.exp_avg", DType::f32, {1}, test::bytes_of<float>({0.1f}),
                {"optim", "state", "w", "exp_avg"});
    source->add_value("step");
    const auto result = cast(source, DType::bf16);
    CHECK(source->reads() == 0);
    CHECK(result->tensors()[0].dtype == DType::bf16);
    CHECK(result->tensors()[1].dtype == DType::i64);
    CHECK(result->tensors()[3].dtype == DType::f32);
    CHECK(result->values().size() == 1);
    const auto whole = test::read_whole(*result, 0);
    CHECK((whole == converted(DType::f32, DType::bf16, test::bytes_of(values))));
    CHECK((test::read_pieces(*result, 0, 70'001) == whole));
    CHECK((test::read_whole(*result, 2) == test::bytes_of<std::uint16_t>({0x3f80})));
    CHECK(test::values_of<float>(test::read_whole(*result, 3)) == std::vector<float>{0.1f});
    test::Bytes out(4);
    CHECK_THROWS_AS(result->read(0, 199'999, 2, out, nullptr), std::invalid_argument);
    CHECK_THROWS_AS(result->read(0, 0, 1, out, nullptr), std::invalid_argument);
    for (const auto dtype : {DType::i64, DType::boolean, DType::c64})
      CHECK_THROWS_AS(cast(source, dtype), RequestError);
    for (const auto dtype : kFloats) CHECK(cast(source, dtype)->tensors()[0].dtype == dtype);
  }

  TEST_CASE("cast: refuses a finite element that the type cannot hold, naming the tensor") {
    const auto result_of = [](DType from, const test::Bytes& elements, DType to) {
      auto source = std::make_shared<test::MemorySource>();
      source->add("fine", from, {1}, test::Bytes(dtype_size_bytes(from)));
      const auto count = static_cast<std::int64_t>(elements.size() / dtype_size_bytes(from));
      source->add("model.norm.weight", from, {count}, elements);
      return cast(source, to);
    };
    const auto refused = [&](DType from, const test::Bytes& elements, DType to, const std::string& value,
                             const std::string& largest, const std::string& wider) {
      const auto result = result_of(from, elements, to);
      test::read_whole(*result, 0);
      try {
        test::read_whole(*result, 1);
        FAIL("a finite element became infinite");
      } catch (const FormatError& error) {
        const std::string text = error.what();
        CAPTURE(text);
        for (const auto& word : {std::string("'model.norm.weight'"), "an element of " + value + ",",
                                 std::string(torch_name(to)) + " is " + largest + ":", wider + " can hold it"})
          CHECK(text.find(word) != std::string::npos);
      }
    };
    const auto floats = test::bytes_of<float>({1, INFINITY, 65519, -70000});
    refused(DType::f32, floats, DType::f16, "-70000", "65504", "bfloat16");
    refused(DType::bf16, test::bytes_of<std::uint16_t>({0x3f80, 0x4780}), DType::f16, "65536", "65504", "bfloat16");
    refused(DType::f32, test::bytes_of<float>({3.4e38f}), DType::bf16, "3.3999999521443642e+38",
            "3.3895313892515355e+38", "float32");
    refused(DType::f64, test::bytes_of<double>({1e300}), DType::f32, "1e+300", "3.4028234663852886e+38", "float64");
    refused(DType::f32, test::bytes_of<float>({465}), DType::f8_e4m3fn, "465", "448", "bfloat16");
    // An element that is not finite before stays so, and one that rounds to the largest is no infinity.
    const auto half = test::read_whole(*result_of(DType::f32, test::bytes_of<float>({INFINITY, 65519}), DType::f16), 1);
    CHECK(test::values_of<std::uint16_t>(half) == std::vector<std::uint16_t>{0x7c00, 0x7bff});
    const auto nan = test::read_whole(*result_of(DType::f32, test::bytes_of<float>({NAN}), DType::f8_e4m3fn), 1);
    CHECK(is_nan(DType::f8_e4m3fn, nan));
  }

  TEST_CASE("cast: converts the tensors of a fixture and still checks checksums") {
    const std::shared_ptr<const Source> source = open_source(test::fixture("pt_t211_gpt_full") / "ckpt.pt");
    const auto result = cast(source, DType::f16);
    std::vector<ReadSum> sums;
    for (std::size_t i = 0; i < source->tensors().size(); ++i) {
      const auto expected = converted(DType::f32, DType::f16, test::read_whole(*source, i));
      CHECK((test::read_whole(*result, i, &sums) == expected));
    }
    CHECK(!sums.empty());
    result->verify_sums(std::move(sums));
  }
}
