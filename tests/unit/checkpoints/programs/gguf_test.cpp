#include "lib/checkpoints/programs/gguf/gguf.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

std::vector<GgufEntry> some_entries() {
  return {{"general.architecture", std::string("llama")},
          {"llama.block_count", std::uint32_t{2}},
          {"llama.rope.freq_base", 10000.0f},
          {"tokenizer.ggml.add_bos_token", true},
          {"tokenizer.ggml.tokens", std::vector<std::string>{"a", "▁b", "", "d", "e", "f", "g", "h", "i"}},
          {"tokenizer.ggml.scores", std::vector<float>{0, -1.5f}},
          {"tokenizer.ggml.token_type", std::vector<std::int32_t>{1, -2}}};
}

std::string some_file(GgufPlan& plan) {
  const std::vector<GgufItem> items{{.name = "a", .type = find_gguf_type("Q8_0"), .shape = {3, 64}},
                                    {.name = "b", .type = find_gguf_type(DType::bf16), .shape = {5}}};
  plan = plan_gguf(items, some_entries());
  auto bytes = plan.head;
  bytes.resize(plan.size_bytes);
  return bytes;
}

GgufHeader read(const test::TempDir& directory, const std::string& bytes) {
  test::write_file(directory / "x.gguf", bytes);
  return read_gguf_header(File::open_read(directory / "x.gguf"));
}

}  // namespace

TEST_SUITE("formats/gguf") {
  TEST_CASE("plan_gguf: tensors begin at multiples of 32 and read_gguf_header() finds what was written") {
    const test::TempDir directory;
    GgufPlan plan;
    const auto header = read(directory, some_file(plan));
    CHECK(plan.head.size() % 32 == 0);
    CHECK(plan.offsets == std::vector<std::uint64_t>{plan.head.size(), plan.head.size() + 224});
    CHECK(plan.size_bytes == plan.head.size() + 224 + 32);
    REQUIRE(header.tensors.size() == 2);
    CHECK(header.tensors[0].shape == Shape{3, 64});
    CHECK(header.tensors[0].type->name == "Q8_0");
    CHECK(header.tensors[0].size_bytes == 3 * 2 * 34);
    CHECK(header.tensors[1].begin_bytes == plan.offsets[1]);
    CHECK(header.metadata.at("llama.block_count") == "2");
    CHECK(header.metadata.at("llama.rope.freq_base") == "10000");
    CHECK(header.metadata.at("tokenizer.ggml.add_bos_token") == "true");
    CHECK(header.metadata.at("tokenizer.ggml.tokens") == "[a, ▁b, , d, e, f, g, h, ...] (9)");
    CHECK(header.metadata.at("tokenizer.ggml.scores") == "[0, -1.5] (2)");
    CHECK(header.metadata.at("tokenizer.ggml.token_type") == "[1, -2] (2)");
  }

  TEST_CASE("read_gguf_header: a file that is cut anywhere, or damaged, is refused") {
    const test::TempDir directory;
    GgufPlan plan;
    const auto whole = some_file(plan);
    const auto end = plan.offsets[1] + 5 * 2;  // only padding follows
    for (std::size_t size = 0; size < end; size += size < plan.head.size() ? 1 : 40)
      CHECK_THROWS_AS(read(directory, whole.substr(0, size)), FormatError);
    CHECK_NOTHROW(read(directory, whole.substr(0, end)));
    for (std::size_t at = 0; at < plan.head.size(); ++at) {
      auto damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x80);
      try {
        read(directory, damaged);
      } catch (const FormatError&) {
      }
    }
    auto big_endian = whole;
    big_endian.replace(4, 4, std::string("\0\0\0\3", 4));
    CHECK_THROWS_WITH_AS(read(directory, big_endian), doctest::Contains("big-endian"), FormatError);
    const std::vector<GgufItem> twice(2, {.name = "a", .type = find_gguf_type(DType::f32), .shape = {0}});
    CHECK_THROWS_AS(read(directory, plan_gguf(twice, {}).head), FormatError);
  }

  TEST_CASE("read_gguf_header: a size beyond 64 bits names file and tensor") {
    const test::TempDir directory;
    const std::vector<GgufItem> items{{.name = "wide", .type = find_gguf_type(DType::f32), .shape = {1, 1}}};
    auto head = plan_gguf(items, {}).head;
    const auto dims = head.find("wide") + 4 + 4;
    head.replace(dims, 16, std::string(6, '\0') + "\x80" + '\0' + std::string(6, '\0') + "\x80" + '\0');
    try {
      read(directory, head);
      FAIL("was read");
    } catch (const FormatError& error) {
      CHECK(std::string(error.what()).find("x.gguf") != std::string::npos);
      CHECK(std::string(error.what()).find("'wide'") != std::string::npos);
    }
  }

  TEST_CASE("read_gguf_metadata: values as they were written, numbers by their shortest text") {
    const test::TempDir directory;
    auto entries = some_entries();
    entries.push_back({"llama.epsilon", 1e-5f});
    test::write_file(directory / "x.gguf", plan_gguf({}, entries).head);
    const auto found = read_gguf_metadata(directory / "x.gguf");
    CHECK(found.size() == entries.size());
    CHECK(found.at("general.architecture") == "llama");
    CHECK(found.at("llama.block_count") == 2);
    CHECK(found.at("llama.epsilon") == 1e-5);  // the float32 is another double
    CHECK(found.at("tokenizer.ggml.add_bos_token") == true);
    CHECK(found.at("tokenizer.ggml.tokens").size() == 9);
    CHECK(found.at("tokenizer.ggml.scores").at(1) == -1.5);
    CHECK(found.at("tokenizer.ggml.token_type").at(1) == -2);
    CHECK(is_gguf_file(directory / "x.gguf"));
    CHECK_FALSE(is_gguf_file(directory / "none"));
    CHECK_FALSE(is_gguf_file(directory / "."));
  }

  TEST_CASE("read_gguf_metadata: refuses a key twice, bytes that are no UTF-8, and more elements than any vocabulary") {
    const test::TempDir directory;
    const auto refused = [&](const std::vector<GgufEntry>& entries, const std::string& word) {
      test::write_file(directory / "x.gguf", plan_gguf({}, entries).head);
      CHECK_THROWS_WITH_AS(read_gguf_metadata(directory / "x.gguf"), doctest::Contains(word.c_str()), FormatError);
    };
    refused({{"a.key", true}, {"a.key", false}}, "'a.key' twice");
    refused({{"a.key", std::string("\xff")}}, "'a.key'");
    refused({{"a.key", std::vector<std::string>((1u << 22) + 1)}}, "'a.key' has 4194305 elements");
  }
}
