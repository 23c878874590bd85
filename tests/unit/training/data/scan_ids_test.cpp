#include "lib/training/data/scan_ids.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/token_files/token_file_writer.hpp"
#include "tests/support/captured_stderr.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::test::TempDir;

namespace {

constexpr std::int64_t kRow = 64;

std::unique_ptr<fsdp::TokenFile> open_raw(const std::filesystem::path& file) {
  fsdp::TokenFileOptions options;
  options.raw = fsdp::NumberType{2, false, false};
  options.stream_inputs = kRow;
  return fsdp::open_token_file(file, options);
}

/// A file of `ids` zeros, of which one is another id.
std::filesystem::path write_ids(const std::filesystem::path& file, std::int64_t ids, std::int64_t at,
                                std::uint16_t id) {
  std::ofstream out(file, std::ios::binary);
  out.seekp(2 * at);
  out.write(reinterpret_cast<const char*>(&id), sizeof(id));
  out.close();
  std::filesystem::resize_file(file, static_cast<std::uintmax_t>(2 * ids));
  return file;
}

void scan(fsdp::ProcessGroup& world, const fsdp::TokenFile& file, const TempDir& dir, std::int64_t vocab_size) {
  fsdp::scan_ids(world, file,
                 {.records = file.num_records(), .vocab_size = vocab_size, .directory = dir / "cache", .quiet = true},
                 fsdp::Logger(world.rank(), fsdp::LogLevel::info), [] { return false; });
}

}  // namespace

TEST_SUITE("train/scan_ids") {
  TEST_CASE("an id beyond the vocabulary is found on every rank, wherever it is") {
    const TempDir dir;
    for (const std::int64_t at : {0, 1, 640, 6399, 6400}) {
      const auto path = write_ids(dir / "ids.bin", 6401, at, 60);
      fsdp::run_thread_ranks(3, 3, [&](fsdp::ProcessGroup& world) {
        const auto file = open_raw(path);
        CHECK_NOTHROW(scan(world, *file, dir, 61));
        CHECK_THROWS_WITH_AS(scan(world, *file, dir, 60), doctest::Contains("token id 60 is outside"),
                             fsdp::FormatError);
      });
    }
    CHECK_FALSE(std::filesystem::exists(dir / "cache"));  // small files leave nothing
  }

  TEST_CASE("of a large file the largest id is kept, until the file changes") {
    const TempDir dir;
    const auto path = write_ids(dir / "ids.bin", (std::int64_t{65} << 20) + 1, std::int64_t{50} << 20, 70);
    const auto said = [&](std::int64_t vocab_size) {
      fsdp::test::CapturedStderr captured(dir / "log");
      fsdp::run_thread_ranks(2, 2, [&](fsdp::ProcessGroup& world) { scan(world, *open_raw(path), dir, vocab_size); });
      return captured.text();
    };
    CHECK(said(100).find("its largest id is 70") != std::string::npos);
    CHECK(said(100).empty());  // known
    CHECK_THROWS_WITH_AS(said(70), doctest::Contains("row 819199, position 64: token id 70"), fsdp::FormatError);
    write_ids(path, (std::int64_t{65} << 20) + 1, 3, 90);
    CHECK(said(100).find("its largest id is 90") != std::string::npos);
    fsdp::run_thread_ranks(1, 1, [&](fsdp::ProcessGroup& world) {
      const auto file = open_raw(path);
      CHECK_NOTHROW(fsdp::scan_ids(world, *file,
                                   {.records = file->num_records(),
                                    .vocab_size = 10,
                                    .directory = dir / "none",
                                    .reads_large = false,
                                    .quiet = true},
                                   fsdp::Logger(0, fsdp::LogLevel::warning), [] { return false; }));
    });
    CHECK_FALSE(std::filesystem::exists(dir / "none"));
  }

  TEST_CASE("a file that names its vocabulary is not read; a stop ends the reading") {
    const TempDir dir;
    fsdp::TokenFileNotes notes;
    notes.vocab_size = 50;
    const auto writer = fsdp::write_token_documents(dir / "own.h5", notes);
    writer->add(std::vector<std::int32_t>{1, 2, 49});
    writer->finish();
    fsdp::run_thread_ranks(1, 1, [&](fsdp::ProcessGroup& world) {
      CHECK_NOTHROW(scan(world, *fsdp::open_token_file(dir / "own.h5"), dir, 10));
      const auto file = open_raw(write_ids(dir / "ids.bin", 6401, 5, 60));
      CHECK_THROWS_AS(fsdp::scan_ids(world, *file, {.records = 100, .vocab_size = 10, .directory = {}, .quiet = true},
                                     fsdp::Logger(0, fsdp::LogLevel::info), [] { return true; }),
                      fsdp::RuntimeFailure);
    });
  }
}
