#include "tests/support/torch_doctest.hpp"

#include "lib/training/data/data_loader.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/ops.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/unit/training/data/written_tokens.hpp"

using fsdp::TokenLoader;
using fsdp::test::Ids;
using fsdp::test::ids_of;
using fsdp::test::notes;
using fsdp::test::TempDir;
using fsdp::test::write_documents;
using fsdp::test::write_rows;

TEST_SUITE("train/data_loader") {
  TEST_CASE("a stream: every id but the first is a target once, and the parts of a split share none") {
    const TempDir dir;
    const auto file = dir / "stream.h5";
    {
      const auto writer = fsdp::write_overlapping_rows(file, 5, notes());
      Ids ids;
      for (std::int32_t i = 0; i < 43; ++i) ids.push_back(i);  // 10 rows, and 2 ids after them
      writer->add(ids);
      writer->finish();
    }
    const auto targets = [](const TokenLoader& loader) {
      Ids all;
      for (std::int64_t row = 0; row < loader.num_rows(); ++row) {
        const auto of_row = ids_of(loader.read({row}).targets_N);
        all.insert(all.end(), of_row.begin(), of_row.end());
      }
      return all;
    };
    const auto range = [](std::int32_t first, std::int32_t end) {
      Ids ids;
      for (; first < end; ++first) ids.push_back(first);
      return ids;
    };
    const TokenLoader whole(file, {4, 100}, 50);
    CHECK(whole.is_stream());
    CHECK(whole.tokens_per_row() == 4);
    CHECK(whole.num_ids(10) == 43);
    CHECK(whole.ids_left_out(10) == 2);
    CHECK(targets(whole) == range(1, 41));

    TokenLoader train(file, {4, 100}, 50), held_out(file, {4, 100}, 50);
    train.keep_part({0.24, false});
    held_out.keep_part({0.24, true});
    CHECK(targets(train) == range(1, 33));
    CHECK(train.num_ids(8) == 33);
    CHECK(train.ids_left_out(8) == 0);
    CHECK(targets(held_out) == range(33, 41));
    CHECK(held_out.num_ids(2) == 11);
    CHECK(held_out.ids_left_out(2) == 2);
    CHECK(ids_of(held_out.read({1, 0}).ids_N) == Ids{36, 37, 38, 39, 32, 33, 34, 35});

    TokenLoader first(file, {4, 100}, 50, 4), one(file, {4, 100}, 50, 1);
    first.keep_part({0.01, true});
    CHECK(targets(first) == range(13, 17));
    CHECK(first.ids_left_out(1) == 0);
    CHECK_THROWS_WITH_AS(one.keep_part({0.01, false}), doctest::Contains("fills 1 row"), fsdp::FormatError);
  }

  TEST_CASE("require_targets: documents that have nothing to predict as far as they are read") {
    const TempDir dir;
    const auto file = write_documents(dir / "documents.h5", {{1}, {}, {2, 3}});
    const TokenLoader loader(file, {6, 100}, 50);
    CHECK_NOTHROW(loader.require_targets(3));
    CHECK_THROWS_WITH_AS(loader.require_targets(2), doctest::Contains("documents.h5"), fsdp::FormatError);
    const TokenLoader rows(write_rows(dir / "rows.h5", 3, {1, 2, 3, 4, 5, 6}), {0, 100}, 50);
    CHECK_NOTHROW(rows.require_targets(1));
  }

  TEST_CASE("packed documents: each as by itself, one after the other, padded behind the last") {
    const TempDir dir;
    TokenLoader loader(
        write_documents(dir / "documents.h5", {{1, 2, 3}, {9}, {10, 11, 12, 13, 14}, {}, {20, 21, 22, 23, 24, 25, 26}}),
        {6, 100}, 50);
    loader.pack({1, false});

    // The last document has 6 ids, 5 pairs, and fills its row of 6 tokens alone; 4 and 2 pairs share the other row.
    CHECK(loader.num_rows() == 2);
    CHECK(loader.num_records() == 5);
    CHECK(loader.tokens_per_row() == 6);
    CHECK(loader.ids_left_out(5) == 1);
    CHECK(loader.fill() == doctest::Approx(11.0 / 12));
    const auto batch = loader.read({0, 1});
    CHECK(batch.rows == 2);
    CHECK(batch.length == 6);
    CHECK(batch.num_targets == 11);
    CHECK(ids_of(batch.ids_N) == Ids{1, 2, 10, 11, 12, 13, 20, 21, 22, 23, 24, 0});
    CHECK(ids_of(batch.targets_N) == Ids{2, 3, 11, 12, 13, 14, 21, 22, 23, 24, 25, -1});
    REQUIRE(batch.packing != nullptr);
    // Padding is at the first position, however much of it there is.
    CHECK(ids_of(batch.packing->positions_N) == Ids{0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0});
    CHECK(ids_of(batch.packing->starts) == Ids{0, 2, 6, 11, 12});
    CHECK(batch.packing->longest == 5);
    REQUIRE(batch.packing->documents.size() == 3);
    CHECK(batch.packing->documents[1].first == 2);
    CHECK(batch.packing->documents[1].length == 4);
    // Where no row of the micro-batch is full, it is as wide as its fullest; on GPUs always the same.
    CHECK(loader.read({1}).length == 5);
    loader.pad_to(4);
    CHECK(loader.tokens_per_row() == 8);
    CHECK(loader.read({1}).length == 8);
    CHECK(loader.read({}).packing == nullptr);
  }

  TEST_CASE("packed documents: a number beyond the rows is a row of a later epoch") {
    const TempDir dir;
    std::vector<Ids> documents;
    for (std::int32_t i = 0; i < 12; ++i) documents.push_back({i, i, i});
    TokenLoader loader(write_documents(dir / "documents.h5", documents), {6, 100}, 50);
    loader.pack({42, true});
    CHECK(loader.num_rows() == 4);
    const auto epoch = [&](std::int64_t e) {
      Ids all;
      for (std::int64_t row = 0; row < 4; ++row) {
        const auto ids = ids_of(loader.read({4 * e + row}).ids_N);
        all.insert(all.end(), ids.begin(), ids.end());
      }
      return all;
    };
    CHECK(epoch(0) != epoch(1));
    auto first = epoch(0), second = epoch(1);
    std::sort(first.begin(), first.end());
    std::sort(second.begin(), second.end());
    CHECK(first == second);
  }

  TEST_CASE("packed preferences: a rejected side begins at the last token of the prompt that it shares") {
    const TempDir dir;
    auto of_preferences = notes();
    of_preferences.has_preferences = of_preferences.masked = true;
    const auto file = dir / "preferences.h5";
    const auto writer = write_token_documents(file, of_preferences);
    const auto add = [&](const Ids& ids, std::size_t prompt) {
      std::vector<std::uint8_t> mask(ids.size(), 1);
      std::fill_n(mask.begin(), prompt, std::uint8_t{0});
      writer->add(ids, mask);
    };
    add({1, 2, 3, 10, 11}, 3);  // the prompt is 1, 2, 3, of which 3 predicts another id in each side
    add({1, 2, 3, 20}, 3);
    add({4, 5, 6}, 1);  // no common prompt
    add({7, 8}, 1);
    add({9, 5, 6}, 1);  // both answers begin with 5: a target of both
    add({9, 5, 7}, 1);
    writer->finish();
    TokenLoader loader(file, {8, 100}, 50);
    loader.pack({1, false});
    CHECK(loader.num_rows() == 1);
    CHECK(loader.shared_tokens() == 2);
    const auto batch = loader.read({0});
    CHECK(batch.num_targets == 2 + 1 + 2 + 1 + 2 + 2);
    CHECK(ids_of(batch.ids_N) == Ids{1, 2, 3, 10, 3, 4, 5, 7, 9, 5, 9, 5});
    CHECK(ids_of(batch.targets_N) == Ids{-1, -1, 10, 11, 20, 5, 6, 8, 5, 6, 5, 7});
    CHECK(ids_of(batch.packing->positions_N) == Ids{0, 1, 2, 3, 2, 0, 1, 0, 0, 1, 0, 1});
    CHECK(batch.packing->documents[1].shared == 2);
    CHECK(batch.packing->whole_tokens == 14);
    REQUIRE(batch.packing->whole != nullptr);
    CHECK(ids_of(batch.packing->whole->starts) == Ids{0, 4, 7, 9, 10, 12, 14});
    CHECK(loader.lengths_in(0)[1].tokens == 1);
    CHECK(loader.lengths_in(0)[1].shared == 2);
    // One token has a prompt of two elsewhere and attends to them, too: (16 + 5 + 4 + 1 + 4 + 4) / 12.
    CHECK(loader.attended_length() == doctest::Approx(34.0 / 12));
  }

  TEST_CASE("judged answers: each prompt also has the answer before it, and judgements are no tokens") {
    const TempDir dir;
    auto judged = notes();
    judged.judged = judged.masked = true;
    const auto write = [&](const std::string& name, std::int32_t last) {
      const auto writer = write_token_documents(dir / name, judged);
      writer->add(Ids{1, 2, 10, 1}, std::vector<std::uint8_t>{0, 0, 1, 0});
      writer->add(Ids{3, 20, 21, 22, 0}, std::vector<std::uint8_t>{0, 1, 1, 1, 0});
      writer->add(Ids{4, 5, 6, 7, 8, 9, 30, last}, std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 1, 0});
      writer->finish();
      return dir / name;
    };
    TokenLoader loader(write("answers.h5", 1), {7, 100}, 50);
    CHECK(loader.is_judged());
    CHECK(loader.num_rows() == 3);
    CHECK(loader.num_references() == 6);
    CHECK(loader.num_ids(3) == 14);
    loader.set_reference({-1, -2, -3, -4, -5, -6});
    const auto batch = loader.read({0, 2});
    CHECK(batch.length == 6);
    CHECK(batch.num_targets == 2);
    CHECK(ids_of(batch.ids_N) == Ids{1, 2, 0, 0, 0, 0, 4, 5, 6, 7, 8, 9});
    CHECK(ids_of(batch.targets_N) == Ids{-1, 10, -1, -1, -1, -1, -1, -1, -1, -1, -1, 30});
    CHECK(batch.desirable_S.sum().item<double>() == 2);
    CHECK(loader.read({1}).desirable_S.item<double>() == 0);
    CHECK(batch.reference_S[1].item<double>() == -3);
    REQUIRE(batch.mismatched != nullptr);
    const auto& other = *batch.mismatched;
    CHECK(other.rows == 2);
    // The last answer, then the second one, which is cut after 7 ids.
    CHECK(ids_of(other.ids_N) == Ids{1, 2, 0, 0, 0, 0, 4, 5, 6, 7, 8, 9});
    CHECK(ids_of(other.targets_N) == Ids{-1, 30, -1, -1, -1, -1, -1, -1, -1, -1, -1, 20});
    CHECK(other.reference_S[0].item<double>() == -4);
    CHECK(other.reference_S[1].item<double>() == -6);
    // At 6 ids the third answer has no target: it is left out, and the one before the first is the second.
    const TokenLoader shorter(dir / "answers.h5", {6, 100}, 50);
    CHECK(shorter.num_rows() == 2);
    CHECK(shorter.samples_left_out() == 1);
    CHECK(ids_of(shorter.read({0}).mismatched->targets_N) == Ids{-1, 20, 21, 22});
    CHECK(shorter.read({}).mismatched->rows == 0);
    const auto wrong = write("wrong.h5", 7);
    CHECK_THROWS_WITH_AS(TokenLoader(wrong, {7, 100}, 50), doctest::Contains("ends with 7"), fsdp::FormatError);
  }

  TEST_CASE("judged answers: the other answer is to another prompt, and there may be none") {
    const TempDir dir;
    auto judged = notes();
    judged.judged = judged.masked = true;
    const auto write = [&](const std::string& name, const std::vector<std::int32_t>& prompts) {
      const auto writer = write_token_documents(dir / name, judged);
      for (std::size_t i = 0; i < prompts.size(); ++i)
        writer->add(Ids{prompts[i], static_cast<std::int32_t>(20 + i), 1}, std::vector<std::uint8_t>{0, 1, 0});
      writer->finish();
      return dir / name;
    };
    const TokenLoader loader(write("groups.h5", {1, 1, 2, 2, 1}), {7, 100}, 50);
    const auto others = loader.read({0, 1, 2, 3, 4}).mismatched;
    CHECK(ids_of(others->ids_N) == Ids{1, 1, 2, 2, 1});
    CHECK(ids_of(others->targets_N) == Ids{23, 23, 21, 21, 23});
    const TokenLoader alone(write("alone.h5", {1, 1}), {7, 100}, 50);
    CHECK_FALSE(alone.has_mismatched());
    CHECK(alone.read({0}).mismatched == nullptr);
    judged.masked = false;
    const auto writer = write_token_documents(dir / "bare.h5", judged);
    writer->add(Ids{1, 2, 1});
    writer->finish();
    CHECK_THROWS_WITH_AS(TokenLoader(dir / "bare.h5", {7, 100}, 50), doctest::Contains("no loss_mask"),
                         fsdp::FormatError);
  }

  TEST_CASE("the first rows or documents alone: later ones count for nothing, also when documents are packed") {
    const TempDir dir;
    const auto file = write_rows(dir / "rows.h5", 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    const auto all = TokenLoader(file, {0, 100}, 50).num_rows();
    CHECK(all > 2);
    const TokenLoader rows(file, {0, 100}, 50, 2);
    CHECK(rows.num_rows() == 2);
    CHECK(ids_of(rows.read({0, 1, 2}).ids_N) == Ids{1, 2, 4, 5, 1, 2});  // row 2 is row 0 of the next epoch
    CHECK(TokenLoader(file, {0, 100}, 50, 50).num_rows() == all);
    TokenLoader documents(write_documents(dir / "documents.h5", {{1, 2, 3}, {4, 5, 6}, {7, 8, 9, 10, 11, 12, 13, 14}}),
                          {4, 100}, 50, 2);
    CHECK(documents.num_records() == 2);
    CHECK(documents.longest_sequence() == 2);
    documents.pack({1, false});
    CHECK(documents.num_rows() == 1);
    CHECK(ids_of(documents.read({0}).ids_N) == Ids{1, 2, 4, 5});
  }

  TEST_CASE("rows cannot be packed again") {
    const TempDir dir;
    TokenLoader loader(write_rows(dir / "rows.h5", 4, {1, 2, 3, 4, 0}), {0, 100}, 50);
    CHECK_THROWS_WITH_AS(loader.pack({}), doctest::Contains("rows.h5"), fsdp::RequestError);
  }

  TEST_CASE("rows: the target of an id is the id after it, and a shorter sequence takes the row's beginning") {
    const TempDir dir;
    const auto file = write_rows(dir / "rows.h5", 4, {1, 2, 3, 4, 0, 5, 6, 7, 8, 0});
    const TokenLoader whole(file, {0, 100}, 50);
    const TokenLoader cut(file, {2, 100}, 50);

    const auto batch = whole.read({1, 0});
    const auto short_batch = cut.read({1});

    CHECK(whole.num_rows() == 2);
    CHECK(batch.rows == 2);
    CHECK(batch.length == whole.tokens_per_row());
    const auto ids = ids_of(batch.ids_N), targets = ids_of(batch.targets_N);
    for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(batch.length); ++i) CHECK(targets[i] == ids[i + 1]);
    CHECK(short_batch.length == 2);
    CHECK(ids_of(short_batch.ids_N) == Ids(ids.begin(), ids.begin() + 2));
    CHECK(ids_of(short_batch.targets_N) == Ids(targets.begin(), targets.begin() + 2));
    CHECK(cut.ids_left_out(2) == whole.num_ids(2) - 2 * 3);
  }

  TEST_CASE("documents: padded on the right to the longest of the micro-batch, padding does not count") {
    const TempDir dir;
    const TokenLoader loader(write_documents(dir / "documents.h5", {{1, 2, 3, 4, 5}, {6}, {}, {7, 8, 9}}), {4, 100},
                             50);

    const auto batch = loader.read({3, 0, 1});
    const auto alone = loader.read({2});

    CHECK(batch.length == 3);  // 4 ids of the longest
    CHECK(ids_of(batch.ids_N) == Ids{7, 8, 0, 1, 2, 3, 0, 0, 0});
    CHECK(ids_of(batch.targets_N) == Ids{8, 9, -1, 2, 3, 4, -1, -1, -1});
    CHECK(batch.num_targets == 5);
    CHECK(alone.num_targets == 0);
    CHECK(loader.ids_left_out(4) == 1);  // the fifth of the first
  }

  TEST_CASE("documents are padded to a multiple for GPUs, within the model's positions") {
    const TempDir dir;
    TokenLoader loader(write_documents(dir / "documents.h5", {{1, 2, 3, 4, 5, 6}, {6, 7}}), {6, 7}, 50);
    loader.pad_to(4);
    const auto batch = loader.read({1});
    CHECK(batch.length == 4);
    CHECK(ids_of(batch.ids_N) == Ids{6, 0, 0, 0});
    CHECK(ids_of(batch.targets_N) == Ids{7, -1, -1, -1});
    CHECK(batch.num_targets == 1);
    CHECK(loader.read({0}).length == 7);  // 8 would be a position too many
    CHECK(loader.tokens_per_row() == 7);
  }

  TEST_CASE("tokens of the head: those with targets and some more, where at most two thirds are needed") {
    const auto sent = [](std::int64_t tokens, const std::vector<std::int64_t>& with_targets) {
      fsdp::MicroBatch batch;
      batch.rows = 1;
      batch.length = tokens;
      batch.ids_N = at::zeros({tokens}, at::kInt);
      batch.targets_N = at::full({tokens}, -1, at::kInt);
      for (const auto token : with_targets) batch.targets_N[token] = 5;
      fsdp::send_to(fsdp::host_ops(), batch);
      return batch.head_tokens_M;
    };
    const auto longs = [](const at::Tensor& tokens_M) {
      return std::vector<std::int64_t>(tokens_M.const_data_ptr<std::int64_t>(),
                                       tokens_M.const_data_ptr<std::int64_t>() + tokens_M.numel());
    };
    CHECK(longs(sent(4, {2})) == std::vector<std::int64_t>{2});
    CHECK(longs(sent(4, {})) == std::vector<std::int64_t>{0});  // one, whose gradient is 0
    CHECK(longs(sent(64, {1, 2, 60})) == std::vector<std::int64_t>{0, 1, 2, 60});
    CHECK(longs(sent(64, {5, 6, 7, 8})) == std::vector<std::int64_t>{5, 6, 7, 8});
    CHECK(longs(sent(64, {5, 6, 7, 8, 9})) == std::vector<std::int64_t>{0, 1, 2, 5, 6, 7, 8, 9});
    CHECK(sent(3, {0, 2}).numel() == 2);
    CHECK(!sent(3, {0, 1, 2}).defined());
    CHECK(!sent(4, {0, 1, 2}).defined());
  }

  TEST_CASE("no rows make a micro-batch without rows") {
    const TempDir dir;
    const TokenLoader loader(write_documents(dir / "documents.h5", {{1, 2}}), {}, 50);
    CHECK(loader.read({}).rows == 0);
  }

  TEST_CASE("an id that the model does not have is refused by file and row") {
    const TempDir dir;
    const auto file = write_documents(dir / "documents.h5", {{1, 2}, {3, 49}});
    const TokenLoader loader(file, {0, 100}, 49);

    CHECK_NOTHROW(loader.read({0}));
    std::string message;
    try {
      loader.read({1});
    } catch (const fsdp::FormatError& error) {
      message = error.what();
    }
    CHECK(message.find(file.string()) != std::string::npos);
    CHECK(message.find("49") != std::string::npos);
  }

  TEST_CASE("nothing to predict is refused") {
    const TempDir dir;
    CHECK_THROWS_AS(TokenLoader(write_documents(dir / "documents.h5", {{1}, {}, {2}}), {0, 100}, 50),
                    fsdp::FormatError);
    CHECK_THROWS_AS(TokenLoader(write_documents(dir / "documents.h5", {{1, 2}}), {1, 100}, 50), fsdp::RequestError);
  }

  TEST_CASE("random rows are the vocabulary's, and the same each time") {
    const auto loader = fsdp::RandomLoader(5, 12, 50);

    const auto batch = loader.read({4, 1});

    CHECK(loader.num_rows() == 5);
    CHECK(batch.ids_N.min().item<std::int32_t>() >= 0);
    CHECK(batch.ids_N.max().item<std::int32_t>() < 50);
    CHECK(at::equal(batch.ids_N, loader.read({4, 1}).ids_N));
    CHECK_FALSE(at::equal(batch.ids_N.narrow(0, 0, 12), batch.ids_N.narrow(0, 12, 12)));
  }
}
