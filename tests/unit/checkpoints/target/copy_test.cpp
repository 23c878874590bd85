#include "lib/checkpoints/target/copy.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <optional>

#include "lib/base/files/file.hpp"
#include "lib/base/process/process_identity.hpp"
#include "lib/checkpoints/programs/dcp/dcp_target.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/source/rank_files_source.hpp"
#include "lib/checkpoints/target/output_directory.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/support/advice_of.hpp"
#include "tests/unit/checkpoints/target/target_test_support.hpp"

using namespace fsdp;

namespace {

test::MemorySource sample() {
  test::MemorySource source;
  source.add("weight", DType::f32, {301, 17}).add("scalar", DType::f64, {}).add("empty", DType::bf16, {0, 4});
  source.add("bytes", DType::u8, {9973}).add("wide", DType::i64, {3, 2000}).add("half", DType::bf16, {5000});
  source.add("complex", DType::c128, {1, 77}).add("turned", DType::f32, {40, 60});
  source.whole = {"turned"};
  source.add_value("step", {"step"}, [](PickleWriter& pickle) { pickle.integer(7); });
  return source;
}

std::string all_files(const std::filesystem::path& directory) {
  std::string text;
  for (const auto& name : test::names_in(directory)) text += name + "\n" + read_text_file(directory / name) + "\n";
  return text;
}

/// Tensors of random elements as ranks of ZeRO-3 keep them: the file of a rank has its part of every tensor, one after
/// the other.
class SplitSource final : public RankFilesSource {
 public:
  SplitSource(const std::filesystem::path& directory, std::uint64_t ranks, const std::vector<Shape>& shapes) {
    info_.directory = directory;
    const auto each = [&](const Shape& shape) { return (element_count(shape) + ranks - 1) / ranks; };
    std::uint64_t held = 0;  // elements of a rank
    for (const auto& shape : shapes) held += each(shape);
    auto& flat = flats_.emplace_back();
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      const auto bytes = test::random_bytes(held * 4, static_cast<unsigned>(rank));
      const auto path = directory / ("rank" + std::to_string(rank));
      test::write_file(path, test::as_text(bytes));
      info_.files.push_back(path);
      const TorchStorage stored{
          .number = 0, .begin_bytes = 0, .size_bytes = held * 4, .crc32 = crc32(0, bytes), .entry = "data"};
      flat.parts.push_back({{add_storage(path, 0, [&] { return stored; }), 0, held, 0}});
    }
    std::uint64_t first = 0;
    for (const auto& shape : shapes) {
      add({"weights", std::int64_t(tensors_.size())}, DType::f32, shape, PlaceInFlat{0, first, each(shape), 0});
      first += each(shape);
    }
  }
};

/// Linux counts what the process has read and written since it began.
struct Transfers {
  std::uint64_t bytes_read = 0, bytes_written = 0, reads = 0, writes = 0;
};
std::optional<Transfers> transfers() {
  std::ifstream file("/proc/self/io");
  Transfers now;
  std::string name;
  for (auto* number : {&now.bytes_read, &now.bytes_written, &now.reads, &now.writes}) file >> name >> *number;
  return file ? std::optional(now) : std::nullopt;
}

/// Sets the soft limit on file sizes, and restores it at the end.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit now { bytes, before_.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  struct rlimit before_ {};
};

}  // namespace

TEST_SUITE("target/copy") {
  TEST_CASE("OutputDirectory: without overwrite an output that appeared since the start is kept") {
    for (const bool is_directory : {false, true}) {
      CAPTURE(is_directory);
      const test::TempDir directory;
      const auto source = sample();
      Layout layout;
      layout.files.push_back({"out", 3});
      const auto output = directory / "out";
      const auto inside = is_directory ? output / "out" : output;
      detail::OutputDirectory first(source, layout, output, is_directory, false);
      detail::OutputDirectory second(source, layout, output, is_directory, false);
      detail::OutputDirectory replacing(source, layout, output, is_directory, true);
      for (auto* place : {&first, &second, &replacing}) place->create_files();
      first.write({{0, 0, "one"}});
      second.write({{0, 0, "two"}});
      replacing.write({{0, 0, "new"}});
      first.publish(false);
      CHECK(read_text_file(inside) == "one");
      CHECK_THROWS_WITH_AS(second.publish(false), doctest::Contains("came into being meanwhile"), RequestError);
      CHECK(read_text_file(inside) == "one");
      replacing.publish(false);
      CHECK(read_text_file(inside) == "new");
    }
  }

  TEST_CASE("copy: any number of threads and ranks and any piece size write the same bytes, which can be read back") {
    const auto source = sample();
    const test::TempDir directory;
    TorchTarget torch("t.pt");
    DcpTarget dcp({3, {}, {}});
    test::copy_alone(source, torch, directory / "t.pt");
    test::copy_alone(source, dcp, directory / "dcp");
    test::check_same_tensors(source, *open_source(directory / "t.pt"));
    test::check_same_tensors(source, *open_source(directory / "dcp"));
    const auto expected_file = read_text_file(directory / "t.pt"), expected_files = all_files(directory / "dcp");

    for (const std::uint64_t piece_bytes : {1u, 100u, 5000u, 1u << 20}) {
      for (const int jobs : {1, 3}) {
        for (const int ranks : {1, 2, 5}) {
          if (piece_bytes == 1 && (jobs != 3 || ranks == 5)) continue;  // slow
          CAPTURE(piece_bytes);
          CAPTURE(jobs);
          CAPTURE(ranks);
          const test::TempDir again;
          run_thread_ranks(ranks, ranks, [&](ProcessGroup& group) {
            const auto own = sample();
            TorchTarget own_torch("t.pt");
            DcpTarget own_dcp({3, {}, {}});
            CopyOptions options;
            options.jobs = jobs;
            options.piece_bytes = piece_bytes;
            const auto report = copy(own, own_torch, again / "t.pt", options, group);
            CHECK(report.bytes_written == expected_file.size());
            CHECK(copy(own, own_dcp, again / "dcp", options, group).num_files == 4);
          });
          CHECK(read_text_file(again / "t.pt") == expected_file);
          CHECK(all_files(again / "dcp") == expected_files);
          CHECK(test::names_in(again.path()) == std::set<std::string>{"dcp", "t.pt"});
        }
      }
    }
  }

  TEST_CASE(
      "copy: an unreadable tensor or a wrong checksum is an error of its kind on every rank, and nothing is left") {
    for (const int ranks : {1, 3}) {
      for (const bool damaged : {true, false}) {
        CAPTURE(ranks);
        CAPTURE(damaged);
        const test::TempDir directory;
        std::atomic<int> errors = 0;
        run_thread_ranks(ranks, ranks, [&](ProcessGroup& group) {
          auto source = sample();
          if (damaged) source.fail_on = {"half"};
          source.sums_are_wrong = !damaged;
          TorchTarget target("t.pt");
          CopyOptions options;
          options.piece_bytes = 1000;
          CHECK_THROWS_WITH_AS(copy(source, target, directory / "t.pt", options, group),
                               damaged ? "memory: at byte 17: is damaged" : "memory: at byte 18: a checksum is wrong",
                               FormatError);
          ++errors;
        });
        CHECK(errors == ranks);
        CHECK(test::names_in(directory.path()).empty());
      }
    }
  }

  TEST_CASE("copy: stops on every rank when requested, and leaves nothing") {
    for (const int ranks : {1, 3}) {
      CAPTURE(ranks);
      const test::TempDir directory;
      run_thread_ranks(ranks, ranks, [&](ProcessGroup& group) {
        const auto source = sample();
        DcpTarget target({2, {}, {}});
        CopyOptions options;
        options.jobs = 2;
        options.piece_bytes = 1000;
        std::atomic<int> asked = 0;
        options.stop = [&] { return group.rank() == group.size() - 1 && ++asked > 3; };
        CHECK_THROWS_AS(copy(source, target, directory / "out", options, group), Stopped);
      });
      CHECK(test::names_in(directory.path()).empty());
    }
  }

  TEST_CASE("copy: reads and writes the parts of eight ranks once, in large pieces") {
    constexpr std::uint64_t ranks = 8, few = 8;
    const test::TempDir directory;
    const SplitSource source(directory.path(), ranks, {{1000, 1031}, {1031}, {500, 2053}, {2053}, {777, 1031}});
    std::uint64_t bytes = 0;
    for (const auto& tensor : source.tensors()) bytes += tensor.size_bytes();
    for (const int jobs : {1, 2}) {
      CAPTURE(jobs);
      DcpTarget target({1, {}, {}});
      CopyOptions options;
      options.jobs = jobs;
      options.overwrite = true;
      const auto before = transfers();
      const auto report = test::copy_alone(source, target, directory / "dcp", options);
      const auto after = transfers();
      if (!before || !after) {
        MESSAGE("skipped: /proc/self/io cannot be read here");
        return;
      }
      // A read ends where a rank's part, a piece of the output or 512 KiB end. A tensor has a head and a tail beside
      // its pieces. `few` is for .metadata, the record of the export and padding.
      const auto pieces = bytes / options.piece_bytes + 2 * source.tensors().size();
      const auto parts = ranks * source.tensors().size();
      CHECK(after->bytes_read - before->bytes_read >= bytes);
      CHECK(after->bytes_read - before->bytes_read <= bytes + few * 1024);
      CHECK(after->reads - before->reads <= parts + pieces + bytes / (512u << 10) + few);
      CHECK(after->bytes_written - before->bytes_written >= report.bytes_written);
      CHECK(after->bytes_written - before->bytes_written <= report.bytes_written + few * 1024);
      CHECK(after->writes - before->writes <= pieces + 2 * source.tensors().size() + few);
    }
    test::check_same_tensors(source, *open_source(directory / "dcp"));
  }

  TEST_CASE("copy: reports progress up to the last byte") {
    const auto source = sample();
    const test::TempDir directory;
    SafetensorsTarget target("m.safetensors");
    test::MemorySource real;
    real.add("a", DType::f32, {100000});
    std::vector<std::uint64_t> seen;
    CopyOptions options;
    options.piece_bytes = 1000;
    options.progress = [&](const CopyProgress& progress) {
      CHECK(progress.bytes_total == 400000);
      seen.push_back(progress.bytes_done);
    };
    test::copy_alone(real, target, directory / "m.safetensors", options);
    REQUIRE(!seen.empty());
    CHECK(std::is_sorted(seen.begin(), seen.end()));
    CHECK(seen.back() == 400000);
  }

  TEST_CASE("copy: refuses an output that does not fit before anything is written") {
    const test::TempDir directory;
    test::MemorySource huge;
    huge.add_unread("huge", DType::f32, {std::int64_t{1} << 50});
    SafetensorsTarget target("m.safetensors");
    try {
      test::copy_alone(huge, target, directory / "m.safetensors");
      FAIL("written");
    } catch (const IoError& error) {
      CHECK(std::string(error.what()).starts_with((directory / "m.safetensors").string() + ": the output needs"));
      CHECK(std::string(error.what()).find("are free") != std::string::npos);
    }
    CHECK(test::names_in(directory.path()).empty());
    test::MemorySource large;
    large.add_unread("large", DType::f32, {1 << 20});
    {
      const FileSizeLimit limit(1 << 20);
      CHECK_THROWS_WITH_AS(test::copy_alone(large, target, directory / "m.safetensors"),
                           doctest::Contains("at most 1048576 bytes"), IoError);
    }
    CHECK(test::names_in(directory.path()).empty());
    CHECK_THROWS_AS(test::copy_alone(sample(), target, directory / "missing" / "m.pt"), RequestError);  // complex
    TorchTarget torch("t.pt");
    CHECK_THROWS_AS(test::copy_alone(sample(), torch, directory / "missing" / "t.pt"), IoError);
  }

  TEST_CASE("copy: replaces an output only with overwrite, and only one of its own kind") {
    const auto source = sample();
    const test::TempDir directory;
    TorchTarget torch("t.pt");
    DcpTarget dcp({2, {}, {}});
    CopyOptions overwrite;
    overwrite.overwrite = true;
    overwrite.sync = true;

    test::write_file(directory / "t.pt", "old");
    CHECK(test::advice_of([&] { test::copy_alone(source, torch, directory / "t.pt"); }).remedy == Remedy::overwrite);
    CHECK(read_text_file(directory / "t.pt") == "old");
    test::copy_alone(source, torch, directory / "t.pt", overwrite);
    test::check_same_tensors(source, *open_source(directory / "t.pt"));

    std::filesystem::create_directory(directory / "dcp");
    test::copy_alone(source, dcp, directory / "dcp");  // an empty directory may be replaced
    CHECK_THROWS_AS(test::copy_alone(source, dcp, directory / "dcp"), RequestError);
    test::copy_alone(source, dcp, directory / "dcp/", overwrite);
    CHECK(test::names_in(directory / "dcp") ==
          std::set<std::string>{".fsdp-export.json", ".metadata", "__0_0.distcp", "__1_0.distcp"});

    CHECK_THROWS_AS(test::copy_alone(source, dcp, directory / "t.pt", overwrite), RequestError);
    TorchTarget named_like_directory("dcp");
    CHECK_THROWS_AS(test::copy_alone(source, named_like_directory, directory / "dcp", overwrite), RequestError);
    std::filesystem::create_directory(directory / "dcp" / "work");
    CHECK_THROWS_WITH_AS(test::copy_alone(source, dcp, directory / "dcp", overwrite), doctest::Contains("'work'"),
                         RequestError);
    CHECK_THROWS_AS(test::copy_alone(source, dcp, directory / ".."), RequestError);
    CHECK(test::names_in(directory.path()) == std::set<std::string>{"dcp", "t.pt"});
  }

  TEST_CASE("copy: replaces a directory only when it is an earlier export, and keeps other files") {
    const auto source = sample();
    const test::TempDir directory;
    DcpTarget two({2, {}, {}}), one({1, {}, {}});
    CopyOptions overwrite;
    overwrite.overwrite = true;
    const auto out = directory / "dcp";
    const auto refuses = [&](const char* reason) {
      CHECK_THROWS_WITH_AS(test::copy_alone(source, one, out, overwrite), doctest::Contains(reason), RequestError);
      CHECK(test::names_in(directory.path()) == std::set<std::string>{"dcp"});
    };
    test::copy_alone(source, two, out);
    test::write_file(out / "notes.txt", "mine");
    refuses("holds 'notes.txt', which is no part of the earlier export");
    CHECK(read_text_file(out / "notes.txt") == "mine");
    std::filesystem::remove(out / "notes.txt");
    test::write_file(out / "__1_0.distcp", "a file of the same name");
    refuses("holds '__1_0.distcp', which is not as it was exported");
    CHECK(read_text_file(out / "__1_0.distcp") == "a file of the same name");
    std::filesystem::remove(out / ".fsdp-export.json");
    refuses("is no earlier export");

    std::filesystem::remove_all(out);
    test::copy_alone(source, two, out);
    std::filesystem::permissions(out, std::filesystem::perms::owner_all);
    std::filesystem::create_directory_symlink("dcp", directory / "link");
    test::copy_alone(source, one, directory / "link", overwrite);
    CHECK(std::filesystem::is_symlink(directory / "link"));
    CHECK(std::filesystem::status(out).permissions() == std::filesystem::perms::owner_all);
    CHECK(test::names_in(out) == std::set<std::string>{".fsdp-export.json", ".metadata", "__0_0.distcp"});
    test::check_same_tensors(source, *open_source(out));
    CHECK(test::names_in(directory.path()) == std::set<std::string>{"dcp", "link"});
  }

  TEST_CASE("copy: restores the name of an export that a killed process had set aside") {
    const auto source = sample();
    const test::TempDir directory;
    DcpTarget dcp({1, {}, {}});
    test::copy_alone(source, dcp, directory / "dcp");
    std::filesystem::rename(directory / "dcp", directory / ".dcp.tmp-17.old");
    CHECK_THROWS_WITH_AS(test::copy_alone(source, dcp, directory / "dcp"), doctest::Contains("exists"), RequestError);
    test::check_same_tensors(source, *open_source(directory / "dcp"));
    // Files that came into a replaced export at the last moment are kept.
    std::filesystem::create_directory(directory / "new");
    test::write_file(directory / "dcp" / "late.txt", "mine");
    remove_export(directory / "dcp", directory / "new");
    CHECK(test::names_in(directory.path()) == std::set<std::string>{"new"});
    CHECK(read_text_file(directory / "new" / "late.txt") == "mine");
  }

  TEST_CASE("copy: clears what killed processes of this host left of the output, and nothing else") {
    const auto source = sample();
    const test::TempDir directory;
    const auto leave = [&](const char* name, const std::optional<ProcessIdentity>& maker) {
      std::filesystem::create_directory(directory / name);
      test::write_file(directory / name / "model.pt", "part");
      if (maker) test::write_file(directory / name / kMakerName, maker->to_json());
    };
    auto gone = ProcessIdentity::own(), elsewhere = gone;
    const auto child = ::fork();
    if (child == 0) ::_exit(0);
    gone.pid = child;
    ::waitpid(child, nullptr, 0);
    elsewhere.pid = child;
    elsewhere.boot_id = elsewhere.host = "other";
    leave(".model.pt.tmp-1-gone", gone);
    leave(".model.pt.tmp-2-runs", ProcessIdentity::own());
    leave(".model.pt.tmp-3-elsewhere", elsewhere);
    leave(".model.pt.tmp-4-unknown", std::nullopt);
    leave(".other.pt.tmp-5-gone", gone);
    TorchTarget one(directory / "model.pt");
    test::copy_alone(source, one, directory / "model.pt");
    CHECK(test::names_in(directory.path()) == std::set<std::string>{"model.pt", ".model.pt.tmp-2-runs",
                                                                    ".model.pt.tmp-3-elsewhere",
                                                                    ".model.pt.tmp-4-unknown", ".other.pt.tmp-5-gone"});
    DcpTarget dcp({1, {}, {}});
    test::copy_alone(source, dcp, directory / "dcp");
    CHECK_FALSE(std::filesystem::exists(directory / "dcp" / kMakerName));
  }

  TEST_CASE("copy: never replaces its own input") {
    const test::TempDir directory;
    TorchTarget torch("t.pt");
    DcpTarget dcp({2, {}, {}});
    test::copy_alone(sample(), torch, directory / "t.pt");
    test::copy_alone(sample(), dcp, directory / "dcp");
    CopyOptions overwrite;
    overwrite.overwrite = true;
    const auto file = open_source(directory / "t.pt"), sharded = open_source(directory / "dcp");
    CHECK_THROWS_WITH_AS(test::copy_alone(*file, torch, directory / "t.pt", overwrite),
                         doctest::Contains("would replace the input"), RequestError);
    CHECK_THROWS_AS(test::copy_alone(*sharded, dcp, directory / "dcp", overwrite), RequestError);
    std::filesystem::create_directory_symlink(directory / "dcp", directory / "link");
    CHECK_THROWS_AS(test::copy_alone(*sharded, dcp, directory / "link", overwrite), RequestError);
    test::check_same_tensors(sample(), *open_source(directory / "dcp"));
  }
}
