#include "lib/checkpoints/programs/gguf/gguf_blocks.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

using namespace fsdp;

namespace {

std::vector<std::byte> bytes_of_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

nlohmann::json blocks_of_gguf_py() {
  const auto file =
      std::filesystem::path(FSDP_FIXTURE_DIR).parent_path() / "unit" / "checkpoints" / "programs" / "gguf_blocks.json";
  return nlohmann::json::parse(read_text_file(file));
}

}  // namespace

TEST_SUITE("formats/gguf blocks") {
  TEST_CASE("dequantize_gguf: every element has the bits that gguf-py computes") {
    const auto all = blocks_of_gguf_py();
    CHECK(all.size() == 10);
    for (const auto& [name, truth] : all.items()) {
      CAPTURE(name);
      const auto* type = find_gguf_type(std::string_view(name));
      REQUIRE(type != nullptr);
      REQUIRE(can_dequantize_gguf(*type));
      auto blocks = bytes_of_hex(truth["block"]);
      blocks.insert(blocks.end(), blocks.begin(), blocks.end());  // two blocks
      std::vector<float> values(2 * type->block_elements), expected(values.size());
      dequantize_gguf(*type, blocks, values);
      const auto once = bytes_of_hex(truth["values"]);
      for (std::size_t i = 0; i < 2; ++i)
        std::memcpy(reinterpret_cast<std::byte*>(expected.data()) + i * once.size(), once.data(), once.size());
      CHECK(values == expected);
    }
  }

  TEST_CASE("dequantize_gguf: other types and parts of blocks are refused") {
    CHECK_FALSE(can_dequantize_gguf(*find_gguf_type("IQ2_XS")));
    CHECK_FALSE(can_dequantize_gguf(*find_gguf_type("F16")));
    std::vector<std::byte> block(34);
    std::vector<float> values(31);
    CHECK_THROWS_AS(dequantize_gguf(*find_gguf_type("Q8_0"), block, values), std::invalid_argument);
  }

  TEST_CASE("dequantize_gguf: scales of float16 below its normal numbers") {
    std::vector<std::byte> block(34);
    block[0] = std::byte{3};  // 3 * 2^-24
    block[2] = std::byte{0xff};
    std::vector<float> values(32);
    dequantize_gguf(*find_gguf_type("Q8_0"), block, values);
    CHECK(values[0] == -3 * 0x1p-24f);
  }
}
