// Compressed items, made with the reference library and larger than any buffer.
#include <doctest/doctest.h>
#include <zstd.h>

#include <memory>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/zstd_item.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/torch_blob_writer.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

/// A frame without its size, as PyTorch writes it.
std::string compress(const std::string& text, int window_log = 21) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, window_log);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 0);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer input{text.data(), text.size(), 0};
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  ZSTD_inBuffer nothing{nullptr, 0, 0};
  REQUIRE(ZSTD_isError(ZSTD_compressStream2(context.get(), &output, &input, ZSTD_e_continue)) == 0);
  REQUIRE(ZSTD_compressStream2(context.get(), &output, &nothing, ZSTD_e_end) == 0);
  out.resize(output.pos);
  return out;
}

struct Item {
  explicit Item(const std::string& compressed) : length(compressed.size()) {
    test::write_file(directory / "file", "before" + compressed + "after");
    file = File::open_read(directory / "file");
  }
  ZstdItem item() const { return {file, 6, length}; }
  std::string read_all(std::size_t step) const {
    ZstdStream stream(file, 6, length);
    std::string all, piece(step, '\0');
    for (;;) {
      const auto count = stream.read(std::as_writable_bytes(std::span(piece.data(), piece.size())));
      all.append(piece, 0, count);
      if (count < step) return all;
    }
  }
  test::TempDir directory;
  std::size_t length;
  File file;
};

std::string random_text(std::size_t count) { return std::string(test::as_text(test::random_bytes(count, 9))); }

/// A torch.save archive of one tensor, with bytes after it.
std::string archive_of(const Shape& sizes, std::span<const std::byte> data, std::size_t extra = 0) {
  const test::TempDir directory;
  ByteSink sink(directory / "blob");
  write_tensor_blob(sink, DType::f32, sizes, data);
  sink.finish();
  return read_text_file(directory / "blob") + std::string(extra, 'x');
}

void accept(const TensorView&) {}

}  // namespace

TEST_SUITE("source/zstd") {
  TEST_CASE("ZstdStream: reads several frames with any step, and an empty stream") {
    const std::string text = random_text(700'000) + std::string(1'000'000, 'a');
    const Item one(compress(text)), two(compress(text) + compress("more"));
    for (const std::size_t step : {1000u, 65536u, 1u << 20, 3u << 20}) {
      CHECK(one.read_all(step) == text);
      CHECK(two.read_all(step) == text + "more");
    }
    CHECK(Item(compress("")).read_all(10).empty());
  }

  TEST_CASE("ZstdStream: refuses damage, truncation and a window of gigabytes") {
    const std::string good = compress(random_text(100'000) + std::string(500'000, 'b'));
    CHECK_THROWS_WITH_AS(Item(good.substr(0, good.size() / 2)).read_all(4096), doctest::Contains("middle of a frame"),
                         FormatError);
    CHECK_THROWS_WITH_AS(Item(good + "garbage").read_all(4096), doctest::Contains("cannot be decompressed"),
                         FormatError);
    CHECK_THROWS_AS(Item("not zstd at all").read_all(16), FormatError);
    CHECK_THROWS_AS(Item(compress(random_text(1000), 30)).read_all(16), FormatError);
    const Item item(good);
    CHECK_THROWS_WITH_AS(ZstdStream(item.file, 6, 1u << 30), doctest::Contains("cut short"), FormatError);
  }

  TEST_CASE("read_zstd_tensor: reads ranges of a tensor larger than the buffers") {
    const Shape sizes{500, 1000};
    const auto data = test::random_bytes(500 * 1000 * 4, 4);
    const Item item(compress(archive_of(sizes, data)));
    const auto check = [&](const TensorView& view) {
      CHECK(view.sizes == sizes);
      CHECK(view.dtype == DType::f32);
    };
    for (const auto& [first, count] : std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{
             {0, 500'000}, {0, 1}, {499'999, 1}, {12'345, 300'000}, {100, 7}}) {
      test::Bytes out(count * 4);
      read_zstd_tensor(item.item(), check, first, count, out);
      CHECK(std::equal(out.begin(), out.end(), data.begin() + static_cast<std::ptrdiff_t>(first * 4)));
    }
    CHECK_THROWS_WITH_AS(
        read_zstd_tensor(item.item(), [](const TensorView&) { throw FormatError("not this one"); }, 0, 0, {}),
        "not this one", FormatError);
  }

  TEST_CASE("read_zstd_tensor: refuses wrong sums, missing ends and endless tails") {
    const Shape sizes{100, 1000};
    const auto data = test::random_bytes(100 * 1000 * 4, 4);
    const std::string archive = archive_of(sizes, data);
    test::Bytes out(data.size());
    const auto read = [&](const std::string& changed) {
      read_zstd_tensor(Item(compress(changed)).item(), accept, 0, out.size() / 4, out);
    };
    CHECK_NOTHROW(read(archive));
    CHECK(out == data);
    std::string flipped = archive;
    flipped[archive.size() / 2] ^= 1;
    CHECK_THROWS_WITH_AS(read(flipped), doctest::Contains("CRC-32"), FormatError);
    CHECK_THROWS_AS(read(archive.substr(0, archive.size() - 1)), FormatError);
    CHECK_THROWS_WITH_AS(read(archive.substr(0, archive.size() / 2)), doctest::Contains("ends in its data"),
                         FormatError);
    CHECK_THROWS_AS(read(archive + "x"), FormatError);
    CHECK_THROWS_WITH_AS(read(archive_of(sizes, data, 10'000'000)), doctest::Contains("follow the tensor's data"),
                         FormatError);
    CHECK_THROWS_AS(read(std::string(200'000, '\0')), FormatError);
    CHECK_THROWS_AS(read(""), FormatError);
  }

  TEST_CASE("read_zstd_archive: refuses a value that decompresses to too many bytes, early") {
    const Item bomb(compress(std::string(50'000'000, '\0')));
    CHECK(bomb.length < 10'000);
    CHECK_THROWS_WITH_AS(read_zstd_archive(bomb.item(), 1'000'000), doctest::Contains("more bytes"), FormatError);
    CHECK(read_zstd_archive(Item(compress("value")).item(), 1'000'000) == "value");
  }
}
