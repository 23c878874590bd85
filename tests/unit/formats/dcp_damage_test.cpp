// A damaged checkpoint gives the original bytes or a FormatError; never a crash, never other bytes.
#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/formats/dcp.hpp"
#include "tests/unit/formats/dcp_test_support.hpp"

using namespace fsdp;

namespace {

struct Outcome {
  int identical = 0, refused = 0;
};

/// Reads every key that is still there. Other shapes, types or bytes under an old key fail the test.
void read_all(const std::filesystem::path& directory, const test::SmallCheckpoint& truth, Outcome& outcome) {
  try {
    const DcpReader reader(directory);
    for (const auto& [key, tensor] : truth.tensors) {
      if (!reader.tensors().contains(key)) continue;
      try {
        const auto& found = reader.tensors().at(key);
        if (found.shape != tensor.shape) {
          // Must not read as a whole; a large room would only tell about this test's memory.
          if (num_elements(found.shape) > 1'000'000) continue;
        }
        const auto bytes = test::read_whole(reader, key);
        if (bytes != tensor.bytes || found.dtype != tensor.dtype || found.shape != tensor.shape) {
          FAIL_CHECK("silently different: ", key);
        }
        ++outcome.identical;
      } catch (const FormatError&) {
        ++outcome.refused;
      } catch (const IoError&) {  // the name of a data file was hit
        ++outcome.refused;
      }
    }
    for (const auto& key : reader.value_keys()) {
      if (!truth.values.contains(key)) continue;
      try {
        if (reader.value(key) != truth.values.at(key)) FAIL_CHECK("silently different: ", key);
        ++outcome.identical;
      } catch (const FormatError&) {
        ++outcome.refused;
      } catch (const IoError&) {
        ++outcome.refused;
      }
    }
  } catch (const FormatError&) {
    ++outcome.refused;
  }
}

struct Damaged {
  test::TempDir directory;
  test::SmallCheckpoint truth;
  Outcome outcome;

  Damaged() { truth.write(directory.path()); }

  void truncate_everywhere(const std::string& name) {
    const std::string whole = read_text_file(directory / name);
    for (std::size_t length = whole.size(); length-- > 0;) {
      CAPTURE(length);
      std::filesystem::resize_file(directory / name, length);
      read_all(directory.path(), truth, outcome);
    }
    test::write_file(directory / name, whole);
  }

  void flip_bits(const std::string& name, int bits_per_byte) {
    const std::string whole = read_text_file(directory / name);
    File file = File::create(directory / name);
    file.write(whole);
    std::mt19937 generator(5);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (int k = 0; k < bits_per_byte; ++k) {
        const int bit = bits_per_byte == 8 ? k : static_cast<int>(generator() % 8);
        CAPTURE(at);
        CAPTURE(bit);
        const auto flipped = static_cast<std::byte>(whole[at] ^ 1 << bit);
        file.write_at(at, std::span(&flipped, 1));
        read_all(directory.path(), truth, outcome);
      }
      const auto original = static_cast<std::byte>(whole[at]);
      file.write_at(at, std::span(&original, 1));
    }
  }
};

}  // namespace

TEST_SUITE("formats/dcp_damage") {
  TEST_CASE("a data file cut at any length") {
    Damaged checkpoint;
    checkpoint.truncate_everywhere("__0_0.distcp");
    CHECK(checkpoint.outcome.identical > 0);
    CHECK(checkpoint.outcome.refused > 0);
  }

  TEST_CASE(".metadata cut at any length is refused") {
    Damaged checkpoint;
    checkpoint.truncate_everywhere(".metadata");
    CHECK(checkpoint.outcome.identical == 0);
    CHECK(checkpoint.outcome.refused > 1000);
  }

  TEST_CASE("any bit of .metadata flipped") {
    Damaged checkpoint;
    checkpoint.flip_bits(".metadata", 8);
    CHECK(checkpoint.outcome.refused > 1000);
  }

  TEST_CASE("a bit in every byte of a data file flipped") {
    Damaged checkpoint;
    checkpoint.flip_bits("__1_0.distcp", 1);
    CHECK(checkpoint.outcome.identical > 0);
    CHECK(checkpoint.outcome.refused > 0);
  }
}
