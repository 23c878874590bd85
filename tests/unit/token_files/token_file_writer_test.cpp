#include "lib/token_files/token_file_writer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/formats/hdf5/hdf5.hpp"
#include "lib/token_files/row_packing.hpp"
#include "lib/token_files/token_file.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/token_files/dataset_test_support.hpp"

namespace {

using fsdp::test::read_document;
using fsdp::test::TempDir;
using Ids = std::vector<std::int32_t>;

fsdp::TokenFileNotes notes(std::int64_t vocab_size) { return {"name", "what it is", vocab_size, {"a.csv", "b.csv"}}; }

Ids counting(std::size_t count, std::int32_t bound) {
  Ids ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(bound));
  return ids;
}

/// Returns the bytes of an element of a dataset, and whether its storage is contiguous.
std::pair<std::size_t, bool> stored_as(const std::filesystem::path& file, const char* name) {
  const fsdp::Hdf5Scope scope;
  const auto handle = fsdp::open_hdf5_read(file);
  const fsdp::Hdf5Dataset dataset(H5Dopen2(handle.get(), name, H5P_DEFAULT));
  const fsdp::Hdf5Type type(H5Dget_type(dataset.get()));
  const fsdp::Hdf5Properties layout(H5Dget_create_plist(dataset.get()));
  return {H5Tget_size(type.get()), H5Pget_layout(layout.get()) == H5D_CONTIGUOUS};
}

std::size_t entries(const TempDir& dir) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(dir.path()), {}));
}

}  // namespace

TEST_SUITE("dataset/token_file_writer") {
  TEST_CASE("packed rows: floor(ids / (L + 1)) rows of L ids that follow each other, whatever the pieces") {
    TempDir dir;
    // 30 ids make 5 rows of 5: the last 5 ids are left out.
    auto writer = fsdp::write_packed_rows(dir / "a.h5", 5, notes(100));
    const auto ids = counting(30, 100);
    writer->add(std::span(ids).first(7));
    writer->add({});
    writer->add(std::span(ids).subspan(7));
    CHECK(writer->finish());
    writer.reset();

    const auto rows = fsdp::open_token_file(dir / "a.h5");
    CHECK(rows->num_records() == 5);
    CHECK(rows->row_length() == 5);
    const std::vector<std::int64_t> all{0, 1, 2, 3, 4};
    Ids read(25);
    rows->read_rows(all, read);
    CHECK(read == Ids(ids.begin(), ids.begin() + 25));
    CHECK(stored_as(dir / "a.h5", "input_ids") == std::pair<std::size_t, bool>{2, true});
    CHECK(entries(dir) == 1);
  }

  TEST_CASE("overlapping rows: each begins with the last id of the row before, whatever the pieces") {
    TempDir dir;
    for (const std::size_t piece : {1, 3, 4, 5, 100}) {
      CAPTURE(piece);
      // 16 ids make 3 rows of 5 and a rest of 3: ids 0 to 4, 4 to 8, 8 to 12.
      auto with_mask = notes(100);
      with_mask.masked = true;
      auto writer = fsdp::write_overlapping_rows(dir / "a.h5", 5, with_mask);
      const auto ids = counting(16, 100);
      std::vector<std::uint8_t> mask(ids.size());
      for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0 ? 1 : 0;
      for (std::size_t i = 0; i < ids.size(); i += piece) {
        const auto count = std::min(piece, ids.size() - i);
        writer->add(std::span(ids).subspan(i, count), std::span(mask).subspan(i, count));
      }
      CHECK(writer->finish());
      writer.reset();

      const auto rows = fsdp::open_token_file(dir / "a.h5");
      CHECK(rows->num_records() == 3);
      CHECK(rows->num_records() == fsdp::overlapping_rows(16, 5));
      CHECK(rows->notes().overlaps);
      CHECK(rows->notes().left_out == 3);
      Ids read(15);
      rows->read_rows(std::vector<std::int64_t>{0, 1, 2}, read);
      CHECK(read == Ids{0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12});
      std::vector<std::uint8_t> counts(5);
      rows->read_loss_mask(2, counts);
      CHECK(counts == std::vector<std::uint8_t>{0, 1, 0, 0, 1});
    }
  }

  TEST_CASE("overlapping rows: a rest of one id is none, and few ids are one shorter row") {
    TempDir dir;
    const auto written = [&](std::size_t count) {
      const auto writer = fsdp::write_overlapping_rows(dir / "a.h5", 5, notes(100));
      writer->add(counting(count, 100));
      writer->finish();
      const auto rows = fsdp::open_token_file(dir / "a.h5");
      CHECK(rows->num_records() == fsdp::overlapping_rows(static_cast<std::int64_t>(count), 5));
      return std::vector<std::int64_t>{rows->num_records(), rows->row_length(), rows->notes().left_out};
    };
    using Figures = std::vector<std::int64_t>;
    CHECK(written(9) == Figures{2, 5, 0});
    CHECK(written(10) == Figures{2, 5, 1});
    CHECK(written(12) == Figures{2, 5, 3});
    CHECK(written(13) == Figures{3, 5, 0});
    CHECK(written(5) == Figures{1, 5, 0});
    CHECK(written(4) == Figures{1, 4, 0});
    CHECK(written(2) == Figures{1, 2, 0});
    CHECK_THROWS_WITH_AS(written(1), doctest::Contains("2 are needed"), fsdp::FormatError);
    CHECK_THROWS_AS(fsdp::write_overlapping_rows(dir / "b.h5", 1, notes(10)), fsdp::RequestError);
  }

  TEST_CASE("packed rows: more than is held in memory at once, and ids of 32 bits") {
    TempDir dir;
    const auto ids = counting(3'000'000, 70000);
    auto writer = fsdp::write_packed_rows(dir / "a.h5", 999, notes(65537));
    CHECK_THROWS_AS(writer->add(std::span(ids).first(66000)), std::invalid_argument);
    writer.reset();
    writer = fsdp::write_packed_rows(dir / "a.h5", 999, notes(70000));
    for (std::size_t first = 0; first < ids.size(); first += 100'000)
      writer->add(std::span(ids).subspan(first, 100'000));
    CHECK(writer->finish());

    const auto rows = fsdp::open_token_file(dir / "a.h5");
    CHECK(rows->num_records() == 3000);
    std::vector<std::int64_t> all(3000);
    std::iota(all.begin(), all.end(), std::int64_t{0});
    Ids read(3000 * 999);
    rows->read_rows(all, read);
    CHECK((read == Ids(ids.begin(), ids.begin() + 3000 * 999)));
    CHECK(stored_as(dir / "a.h5", "input_ids").first == 4);
  }

  TEST_CASE("a loss mask beside the ids, of both kinds and of any size") {
    TempDir dir;
    auto with_mask = notes(100);
    with_mask.masked = true;
    with_mask.chat_template = "chatml";
    with_mask.train_on = "answers";
    const auto ids = counting(5'000'000, 100);
    std::vector<std::uint8_t> mask(ids.size());
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 1 ? 1 : 0;
    const auto rows = fsdp::write_packed_rows(dir / "rows.h5", 999, with_mask);
    const auto documents = fsdp::write_token_documents(dir / "documents.h5", with_mask);
    for (auto* writer : {rows.get(), documents.get()}) {
      CHECK_THROWS_AS(writer->add(Ids{1, 2}), std::invalid_argument);
      CHECK_THROWS_AS(writer->add(Ids{1, 2}, std::span(mask).first(1)), std::invalid_argument);
      for (std::size_t first = 0; first < ids.size(); first += 50'000)
        writer->add(std::span(ids).subspan(first, 50'000), std::span(mask).subspan(first, 50'000));
      writer->add({});
      CHECK(writer->finish());
    }
    CHECK_THROWS_AS(fsdp::write_token_documents(dir / "b.h5", notes(100))->add(Ids{1}, std::span(mask).first(1)),
                    std::invalid_argument);

    const auto read_rows = fsdp::open_token_file(dir / "rows.h5");
    std::vector<std::uint8_t> row(999);
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{4444}, read_rows->num_records() - 1}) {
      read_rows->read_loss_mask(i, row);
      CHECK(std::equal(row.begin(), row.end(), mask.begin() + i * 999));
    }
    const auto read_documents = fsdp::open_token_file(dir / "documents.h5");
    CHECK(read_documents->num_records() == 101);
    std::vector<std::uint8_t> document(50'000);
    for (const std::int64_t i : {0, 57, 99}) {
      read_documents->read_loss_mask(i, document);
      CHECK(std::equal(document.begin(), document.end(), mask.begin() + i * 50'000));
    }
    CHECK(stored_as(dir / "documents.h5", "loss_mask").first == 1);
    CHECK(fsdp::open_token_file(dir / "rows.h5")->notes().chat_template == "chatml");
    CHECK(fsdp::open_token_file(dir / "documents.h5")->notes().train_on == "answers");
    CHECK(entries(dir) == 2);
  }

  TEST_CASE("uint16 up to 65536 ids") {
    TempDir dir;
    auto writer = fsdp::write_packed_rows(dir / "a.h5", 2, notes(65536));
    writer->add(Ids{0, 65535, 1});
    CHECK(writer->finish());
    Ids row(2);
    fsdp::open_token_file(dir / "a.h5")->read(0, row);
    CHECK(row == Ids{0, 65535});
    CHECK(stored_as(dir / "a.h5", "input_ids").first == 2);
  }

  TEST_CASE("documents: lengths from none to many chunks, empty ones kept") {
    TempDir dir;
    std::vector<Ids> all{{}, counting(1, 9), {}, counting(5'000'000, 65536), counting(20'000, 7), {}};
    for (const std::int64_t vocab_size : {65536, 65537}) {
      auto writer = fsdp::write_token_documents(dir / "a.h5", notes(vocab_size));
      for (const auto& ids : all) writer->add(ids);
      CHECK(writer->finish());
      const auto documents = fsdp::open_token_file(dir / "a.h5");
      REQUIRE(documents->num_records() == 6);
      for (std::int64_t i = 0; i < 6; ++i) CHECK((read_document(*documents, i) == all[static_cast<std::size_t>(i)]));
      CHECK(stored_as(dir / "a.h5", "tokens").first == (vocab_size == 65536 ? 2 : 4));
    }
    CHECK(entries(dir) == 1);
  }

  TEST_CASE("documents: very many short ones, and none with an id") {
    TempDir dir;
    auto writer = fsdp::write_token_documents(dir / "a.h5", notes(10));
    for (int i = 0; i < 700'000; ++i) writer->add(i % 3 == 0 ? Ids{} : Ids{i % 10});
    CHECK(writer->finish());
    const auto many = fsdp::open_token_file(dir / "a.h5");
    CHECK(many->num_records() == 700'000);
    CHECK(many->length(699'999) == 0);
    CHECK(read_document(*many, 699'998) == Ids{8});

    writer = fsdp::write_token_documents(dir / "b.h5", notes(10));
    writer->add({});
    CHECK(writer->finish());
    const auto empty = fsdp::open_token_file(dir / "b.h5");
    CHECK(empty->num_records() == 1);
    CHECK(empty->length(0) == 0);
  }

  TEST_CASE("what is not finished leaves nothing; what was there stays") {
    TempDir dir;
    fsdp::replace_file(dir / "a.h5", "old");
    {
      const auto rows = fsdp::write_packed_rows(dir / "a.h5", 2, notes(10));
      rows->add(Ids(5'000'000, 1));
      const auto documents = fsdp::write_token_documents(dir / "b.h5", notes(10));
      documents->add(Ids(5'000'000, 1));
      CHECK(entries(dir) == 3);
    }
    CHECK(entries(dir) == 1);
    {
      const auto rows = fsdp::write_packed_rows(dir / "a.h5", 2, notes(10));
      rows->add(Ids(100, 1));
      CHECK_FALSE(rows->finish([] { return true; }));
    }
    CHECK(entries(dir) == 1);
    CHECK(fsdp::read_text_file(dir / "a.h5") == "old");
  }

  TEST_CASE("refused: too few ids, ids out of the vocabulary, impossible sizes") {
    TempDir dir;
    auto writer = fsdp::write_packed_rows(dir / "a.h5", 4, notes(10));
    writer->add(Ids{1, 2, 3, 4});
    CHECK_THROWS_WITH_AS(writer->finish(), doctest::Contains("4 token ids do not fill one row"), fsdp::FormatError);
    CHECK_THROWS_AS(writer->add(Ids{10}), std::invalid_argument);
    CHECK_THROWS_AS(writer->add(Ids{-1}), std::invalid_argument);
    CHECK_THROWS_AS(fsdp::write_packed_rows(dir / "b.h5", 1, notes(10)), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::write_token_documents(dir / "b.h5", notes(0)), fsdp::RequestError);
    CHECK_THROWS_WITH_AS(fsdp::write_token_documents(dir / "none/b.h5", notes(10)),
                         doctest::Contains("there is no directory"), fsdp::IoError);
    CHECK_THROWS_WITH_AS(fsdp::write_token_documents("/proc/b.h5", notes(10)),
                         doctest::Contains("/proc/b.h5: token file not written: "), fsdp::IoError);
  }

  TEST_CASE("documents that share rows: as RowPacking puts them, with their masks") {
    TempDir dir;
    auto with_mask = notes(100);
    with_mask.masked = true;
    const std::vector<std::size_t> lengths{5, 3, 1, 9, 4, 5, 0, 7};
    std::vector<std::int64_t> tokens;
    auto writer = fsdp::write_packed_documents(dir / "a.h5", {9, 3}, with_mask);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const Ids ids(lengths[i], static_cast<std::int32_t>(i));
      writer->add(ids, std::vector<std::uint8_t>(ids.size(), static_cast<std::uint8_t>(i % 2)));
      tokens.push_back(std::max<std::int64_t>(0, static_cast<std::int64_t>(lengths[i]) - 1));
    }
    CHECK_THROWS_AS(writer->add(Ids(10, 1), std::vector<std::uint8_t>(10)), std::invalid_argument);
    CHECK(writer->finish());
    const fsdp::RowPacking packing(tokens, 9, {3, true});
    const auto file = fsdp::open_token_file(dir / "a.h5");
    REQUIRE(file->num_shared_rows() == packing.num_rows());
    CHECK(writer->document_rows() == packing.num_rows());
    CHECK(file->num_records() == 6);
    std::int64_t next = 0;
    for (std::int64_t row = 0; row < packing.num_rows(); ++row) {
      CHECK(file->shared_row_begin(row) == next);
      for (const auto document : packing.documents(row, 0)) {
        const auto length = lengths[static_cast<std::size_t>(document)];
        CHECK(read_document(*file, next) == Ids(length, static_cast<std::int32_t>(document)));
        std::vector<std::uint8_t> mask(length);
        file->read_loss_mask(next++, mask);
        CHECK(mask == std::vector<std::uint8_t>(length, static_cast<std::uint8_t>(document % 2)));
      }
    }
    CHECK(file->shared_row_begin(packing.num_rows()) == next);
    CHECK(entries(dir) == 1);

    const auto unpacked = fsdp::write_packed_documents(dir / "b.h5", {9, 3}, notes(10));
    unpacked->add(Ids{1});
    CHECK_THROWS_WITH_AS(unpacked->finish(), doctest::Contains("no document has 2 ids"), fsdp::FormatError);
    CHECK_THROWS_AS(fsdp::write_packed_documents(dir / "b.h5", {1, 3}, notes(10)), fsdp::RequestError);
  }

  TEST_CASE("a long list of sources fits") {
    TempDir dir;
    auto many = notes(10);
    many.sources.assign(20'000, "a/long/name/of/a/file.parquet");
    auto writer = fsdp::write_token_documents(dir / "a.h5", many);
    writer->add(Ids{1});
    CHECK(writer->finish());
    CHECK(fsdp::open_token_file(dir / "a.h5")->num_records() == 1);
  }
}
