#include "lib/formats/zip.hpp"

#include <doctest/doctest.h>

#include "lib/formats/crc32.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::uint32_t crc_of(std::string_view text) { return crc32(0, std::as_bytes(std::span(text.data(), text.size()))); }

}  // namespace

TEST_SUITE("formats/zip_records") {
  // torch 2.11 wrote these bytes for {'a': 12 bytes, 'big': 2^32 + 12345 bytes, 'c': 40 bytes} in tgt_big.pt.
  constexpr std::uint64_t big_bytes = (1ull << 32) + 12345, big_at = 860, c_at = 4294980625;

  TEST_CASE("zip_local_header_of: has a zip64 field, as PyTorch writes it, when the size or the offset needs one") {
    CHECK(detail::zip_local_header_of("tgt_big/data/1", big_bytes, big_at) ==
          from_hex("504b0304000008080000000000000000000000000000000000000e0038007467745f6269672f646174612f31"
                   "010010003930000001000000000000000000000046422000") +
              std::string(32, 'Z'));
    CHECK(detail::zip_local_header_of("tgt_big/data/2", 40, c_at) ==
          from_hex("504b0304000008080000000000000000000000000000000000000e0043007467745f6269672f646174612f32"
                   "0100080011340000010000004642"
                   "3300") +
              std::string(51, 'Z'));
  }

  TEST_CASE("zip_descriptor_of: has 64-bit sizes exactly when the header has a zip64 field") {
    CHECK(detail::zip_descriptor_of({"", big_bytes, big_at, 0x1e83137d}) ==
          from_hex("504b07087d13831e39300000010000003930000001000000"));
    CHECK(detail::zip_descriptor_of({"", 40, c_at, 0xe6a5e769}) ==
          from_hex("504b070869e7a5e628000000000000002800000000000000"));
    CHECK(detail::zip_descriptor_of({"", 12, 100, 1}) == from_hex("504b0708010000000c0000000c000000"));
  }

  TEST_CASE("zip_directory_of: has the entries that PyTorch writes") {
    const std::vector<ZipRecord> records{{"tgt_big/data/0", 12, 0x2d6, 0x7bd5c66f},
                                         {"tgt_big/data/1", big_bytes, 0x35c, 0x1e83137d},
                                         {"tgt_big/data/2", 40, c_at, 0xe6a5e769}};
    const auto expected = from_hex(
        "504b0102000000000808000000000000"
        "6fc6d57b0c0000000c0000000e00000000000000000000000000d6020000"
        "7467745f6269672f646174612f30"
        "504b0102000000000808000000000000"
        "7d13831effffffffffffffff0e001400000000000000000000005c030000"
        "7467745f6269672f646174612f31"
        "0100100039300000010000003930000001000000"
        "504b0102000000000808000000000000"
        "69e7a5e628000000280000000e000c0000000000000000000000ffffffff"
        "7467745f6269672f646174612f32"
        "010008001134000001000000");
    CHECK(detail::zip_directory_of(records, 4294981056).substr(0, expected.size()) == expected);
  }

  TEST_CASE("ZipPlan: an archive of more than 4 GiB can be read") {
    const test::TempDir directory;
    ZipPlan plan("a");
    plan.add("data.pkl", "pickle");
    const auto at = plan.add_data("data/0", big_bytes);
    plan.add_data("data/1", 40);
    plan.finish();
    File file = File::create(directory / "sparse");
    file.truncate(plan.size_bytes());
    const auto put = [&](std::uint64_t offset, std::string_view bytes) {
      file.write_at(offset, std::as_bytes(std::span(bytes.data(), bytes.size())));
    };
    put(0, plan.head());
    const std::string zeros(40, '\0');
    const std::vector<std::uint32_t> crcs{0x12345678, crc_of(zeros)};
    for (const auto& piece : plan.tail(crcs)) put(piece.offset_bytes, piece.bytes);
    const ZipReader zip(file, 0, plan.size_bytes());
    REQUIRE(zip.entries().size() == 3);
    CHECK(zip.entries()[1].size_bytes == big_bytes);
    CHECK(zip.data_offset(zip.entries()[1]) == at);
    CHECK(zip.read_text(zip.entries()[2]) == zeros);
  }
}
