// Token files of Megatron, llm.c, NumPy, nanoGPT, datasets, Parquet and h5py, whole and broken
// (tests/fixtures/token_files), and llmq's.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/token_files/token_file.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/token_files/dataset_test_support.hpp"

using fsdp::test::read_document;
using fsdp::test::TempDir;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

namespace {

const std::filesystem::path kFixtures = FSDP_FIXTURE_DIR "/token_files";

#ifdef FSDP_HAS_PARQUET
constexpr bool kReadsParquet = true;
#else
constexpr bool kReadsParquet = false;
#endif

/// The cases that this build reads.
json read_json(const char* name) {
  const auto all = json::parse(fsdp::read_text_file(kFixtures / name));
  json cases;
  for (const auto& [key, one] : all.items()) {
    if (kReadsParquet || (one["kind"] != "arrow" && one["kind"] != "parquet")) cases[key] = one;
  }
  return cases;
}

/// True for rows or documents of lists, which are not cut from a stream.
bool has_lists(const json& one) {
  return one["kind"] == "arrow" || one["kind"] == "parquet" ||
         (one["kind"] == "hdf5" && one["path"] != "hdf5/stream.h5");
}

/// The file of a case; of Megatron's the .idx or the .bin.
std::filesystem::path file_of(const json& one, const char* suffix = ".idx") {
  auto file = kFixtures / one["path"].get<std::string>();
  if (one["kind"] == "megatron") file += suffix;
  return file;
}

fsdp::TokenFileOptions options_of(const json& one, std::int64_t stream_inputs = 0) {
  fsdp::TokenFileOptions options;
  options.stream_inputs = stream_inputs;
  options.documents = true;
  if (one["kind"] == "raw") options.raw = fsdp::NumberType{one["dtype"] == "uint32" ? 4 : 2, false, false};
  return options;
}

Ids joined(const json& documents) {
  Ids all;
  for (const auto& document : documents) {
    const auto ids = document.get<Ids>();
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

/// The records of a case: of Megatron's the sequences, which documents may be made of.
std::vector<Ids> records_of(const json& one) {
  if (!one.contains("sequences")) return one["documents"].get<std::vector<Ids>>();
  const auto all = joined(one["documents"]);
  std::vector<Ids> records;
  auto begin = all.begin();
  for (const auto& length : one["sequences"]) {
    records.emplace_back(begin, begin + length.get<std::ptrdiff_t>());
    begin += length.get<std::ptrdiff_t>();
  }
  return records;
}

/// Rows of which each begins with the last id of the one before, as one list.
Ids ids_of_rows(const fsdp::TokenFile& file) {
  Ids all;
  for (std::int64_t row = 0; row < file.num_records(); ++row) {
    const auto ids = read_document(file, row);
    if (row > 0) CHECK(ids.front() == all.back());
    all.insert(all.end(), ids.begin() + (row > 0 ? 1 : 0), ids.end());
  }
  return all;
}

void write_llmq(const std::filesystem::path& path, std::int32_t version, bool masks, const Ids& ids) {
  std::array<std::int32_t, 256> header{};
  std::memcpy(header.data(), "BIN.TOK\n", 8);
  header[2] = version;
  header[3] = 4;
  header[4] = static_cast<std::int32_t>(ids.size());
  header[5] = 500;
  header[6] = masks ? 1 : 0;
  auto file = fsdp::File::create(path);
  file.write(std::as_bytes(std::span(header)));
  file.write(std::as_bytes(std::span(ids)));
}

/// Writes Megatron's index of `sequences` sequences of 2 ids of two bytes, each where the one before ends, and a sparse
/// file of zeros beside it. \param odd  of this sequence begin and end are 4 bytes later; -1: of none
void write_megatron(const std::filesystem::path& idx, std::int64_t sequences, std::int64_t odd) {
  auto file = fsdp::File::create(idx);
  file.write(std::string_view("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x8", 18));
  const std::array<std::int64_t, 2> counts{sequences, 2}, documents{0, sequences};
  const std::vector<std::int32_t> lengths(static_cast<std::size_t>(sequences), 2);
  std::vector<std::int64_t> pointers(lengths.size());
  for (std::size_t i = 0; i < pointers.size(); ++i) pointers[i] = static_cast<std::int64_t>(4 * i);
  if (odd >= 0) pointers[static_cast<std::size_t>(odd)] += 4;
  file.write(std::as_bytes(std::span(counts)));
  file.write(std::as_bytes(std::span(lengths)));
  file.write(std::as_bytes(std::span(pointers)));
  file.write(std::as_bytes(std::span(documents)));
  fsdp::File::create(std::filesystem::path(idx).replace_extension(".bin"))
      .truncate(static_cast<std::uint64_t>(4 * sequences));
}

}  // namespace

TEST_SUITE("token files/foreign") {
  TEST_CASE("each kind has the ids that its program sees, as documents and as rows of a stream") {
    const auto all = read_json("expected.json");
    for (const auto& [name, one] : all.items()) {
      CAPTURE(name);
      for (const char* suffix : {".idx", ".bin"}) {
        const auto path = file_of(one, suffix);
        REQUIRE(fsdp::is_token_file(path));
        const auto file = fsdp::open_token_file(path, options_of(one));
        std::vector<Ids> records;
        for (std::int64_t i = 0; i < file->num_records(); ++i) records.push_back(read_document(*file, i));
        CHECK(records == records_of(one));
      }
      const bool is_stream = fsdp::open_token_file(file_of(one), options_of(one))->has_documents();
      if (!is_stream || has_lists(one) || name == "llmc_shards")
        continue;  // rows are as they are; shards are cut one by one
      const auto whole = joined(one["documents"]);
      for (const std::int64_t inputs : {1, 4, 7, 500}) {
        CAPTURE(inputs);
        auto options = options_of(one, inputs);
        options.documents = false;
        const auto rows = fsdp::open_token_file(file_of(one), options);
        CHECK(rows->row_length() == std::min<std::int64_t>(inputs + 1, std::ssize(whole)));
        const auto notes = rows->notes();
        CHECK(notes.overlaps);
        const auto kept = std::ssize(whole) - notes.left_out;
        CHECK(notes.left_out < inputs);
        CHECK(ids_of_rows(*rows) == Ids(whole.begin(), whole.begin() + kept));
      }
    }
  }

  TEST_CASE("broken files are refused by name and place") {
    const auto all = read_json("broken.json");
    for (const auto& [name, one] : all.items()) {
      CAPTURE(name);
      std::string problem;
      try {
        auto options = options_of(one, 1000);
        options.documents = false;
        const auto file = fsdp::open_token_file(file_of(one), options);
        for (std::int64_t i = 0; i < file->num_records(); ++i) {
          const auto ids = read_document(*file, i);
          fsdp::check_token_ids(ids, one["vocab"].get<std::int64_t>(), file->file(), {&i, 1});
        }
      } catch (const fsdp::Error& error) {
        CHECK(error.code() == fsdp::ExitCode::bad_input);
        problem = error.what();
      }
      CAPTURE(problem);
      CHECK(problem.starts_with((kFixtures / one["path"].get<std::string>()).string()));
      if (!one.contains("where")) continue;
      CHECK(problem.find("position " + std::to_string(one["where"]["position"].get<int>())) != std::string::npos);
    }
  }

  TEST_CASE("labels of -100 beside ids do not count" * doctest::skip(!kReadsParquet)) {
    const auto expected = read_json("expected.json")["arrow_with_mask"];
    const auto file = fsdp::open_token_file(file_of(expected));
    REQUIRE(file->has_loss_mask());
    for (std::int64_t i = 0; i < file->num_records(); ++i) {
      std::vector<std::uint8_t> mask(static_cast<std::size_t>(file->length(i)));
      file->read_loss_mask(i, mask);
      CHECK(mask == expected["counts"][static_cast<std::size_t>(i)].get<std::vector<std::uint8_t>>());
    }
  }

  TEST_CASE("what surrounds the ids is told, not read") {
    const auto expected = read_json("expected.json");
    CHECK(fsdp::open_token_file(file_of(expected["trailing"]))->remarks().size() == 1);
    CHECK(fsdp::open_token_file(file_of(expected["u16"]))->remarks().empty());
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(file_of(expected["nanogpt_u16"])),
                         doctest::Contains("do not say how wide they are"), fsdp::FormatError);
    const TempDir dir;
    for (const char* name : {"train.bin", "val.bin"})
      std::filesystem::copy_file(file_of(expected["llmc_u16"]), dir.path() / name);
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir.path()), doctest::Contains("of which one may be held out"),
                         fsdp::FormatError);
    std::filesystem::remove(dir.path() / "val.bin");
    CHECK(fsdp::is_token_file(dir.path()));
    fsdp::File::create(dir.path() / "text.jsonl").write(std::string_view("{}\n"));
    CHECK(!fsdp::is_token_file(dir.path()));
  }

  TEST_CASE("a changed byte in a header or an index ends in ids or in an error that names the file") {
    const TempDir dir;
    int refused = 0, read = 0;
    const auto all = read_json("expected.json");
    for (const auto& [name, one] : all.items()) {
      CAPTURE(name);
      auto original = file_of(one);
      if (one["kind"] == "arrow") original /= "data-00000-of-00001.arrow";
      if (!std::filesystem::is_regular_file(original)) continue;
      const auto changed = dir.path() / original.filename();
      if (one["kind"] == "megatron")
        std::filesystem::copy_file(file_of(one, ".bin"), std::filesystem::path(changed).replace_extension(".bin"),
                                   std::filesystem::copy_options::overwrite_existing);
      const auto text = fsdp::read_text_file(original);
      const bool is_arrow = one["kind"] == "arrow" || one["kind"] == "parquet";
      const std::size_t most = is_arrow ? text.size() : 160, step = is_arrow ? 97 : 1;
      for (std::size_t at = 0; at < std::min(text.size(), most); at += step) {
        for (const char byte : {'\0', '\x7f', '\xff', static_cast<char>(text[at] ^ 1)}) {
          auto other = text;
          other[at] = byte;
          fsdp::File::create(changed).write(other);
          try {
            auto options = options_of(one, 16);
            options.documents = at % 2 == 0;
            const auto file = fsdp::open_token_file(changed, options);
            for (std::int64_t i = 0; i < file->num_records(); ++i) read += read_document(*file, i).empty() ? 0 : 1;
          } catch (const fsdp::FormatError& error) {
            ++refused;
            CHECK(std::string(error.what()).starts_with((dir.path() / original.stem()).string()));
          }
        }
      }
      std::filesystem::remove(changed);
    }
    CHECK(refused > 1000);
    CHECK(read > 10000);
  }

  TEST_CASE("a large index of Megatron is read by check(), not at its opening") {
    const TempDir dir;
    constexpr std::int64_t kSequences = 400'000;
    fsdp::TokenFileOptions now;
    now.stream_inputs = 999;
    auto later = now;
    later.checked_later = true;
    write_megatron(dir / "a.idx", kSequences, -1);
    const auto read = fsdp::open_token_file(dir / "a.idx", now), sampled = fsdp::open_token_file(dir / "a.idx", later);
    CHECK(sampled->num_records() == read->num_records());
    CHECK(sampled->notes().left_out == read->notes().left_out);
    CHECK_NOTHROW(sampled->check());
    CHECK(sampled->files() == std::vector{dir / "a.bin", dir / "a.idx"});
    // Not one of the 64 places that are looked at.
    write_megatron(dir / "b.idx", kSequences, 12'345);
    CHECK(fsdp::open_token_file(dir / "b.idx", now)->num_records() == read->num_records());  // ids are found, twice
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "b.idx", later)->check(),
                         doctest::Contains("do not follow each other"), fsdp::FormatError);
    // One of them: the whole index is read at once.
    write_megatron(dir / "c.idx", kSequences, kSequences - 1);
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "c.idx", later), doctest::Contains("sequence 399999 begins at"),
                         fsdp::FormatError);
    std::filesystem::resize_file(dir / "c.bin", 4 * (kSequences + 1));
    CHECK_NOTHROW(fsdp::open_token_file(dir / "c.idx", later)->check());
    // A broken one that only check() sees.
    auto file = fsdp::File::open_write(dir / "a.idx");
    const std::int64_t far = std::int64_t{1} << 40;
    file.write_at(34 + 4 * kSequences + 8 * 200'000 + 8, std::as_bytes(std::span(&far, 1)));
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir / "a.idx", later)->check(),
                         doctest::Contains("sequence 200001 begins at byte 1099511627776 with 2 ids"),
                         fsdp::FormatError);
  }

  TEST_CASE("llmq's files: ids of four bytes; masks are refused") {
    const TempDir dir;
    const Ids ids{3, 499, 70000, 5};
    for (const int version : {1, 2}) {
      write_llmq(dir.path() / "a.bin", version, false, ids);
      CHECK(read_document(*fsdp::open_token_file(dir.path() / "a.bin"), 0) == ids);
    }
    write_llmq(dir.path() / "b.bin", 3, false, ids);
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir.path() / "b.bin"), doctest::Contains("version 3 of llmq's"),
                         fsdp::FormatError);
    write_llmq(dir.path() / "c.bin", 2, true, ids);
    CHECK_THROWS_WITH_AS(fsdp::open_token_file(dir.path() / "c.bin"), doctest::Contains("has masks"),
                         fsdp::FormatError);
  }

  TEST_CASE("a file that ends while it is read, and one that is larger than memory") {
    const TempDir dir;
    const auto path = dir.path() / "large.bin";
    fsdp::TokenFileOptions options;
    options.raw = fsdp::NumberType{2, false, false};
    options.stream_inputs = 1024;
    {
      auto file = fsdp::File::create(path);  // sparse: a terabyte of zeros
      file.truncate(std::uint64_t{1} << 40);
    }
    const auto large = fsdp::open_token_file(path, options);
    CHECK(large->num_records() == ((std::int64_t{1} << 39) - 1) / 1024);
    Ids row(1025, 7);
    large->read(large->num_records() - 1, row);
    CHECK(row == Ids(1025, 0));
    std::filesystem::resize_file(path, 4096);
    CHECK_THROWS_AS(large->read(large->num_records() - 1, row), fsdp::FormatError);
  }
}
