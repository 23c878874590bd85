// Checksums, unusual directories and names that the fixtures do not have.
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include <atomic>
#include <fstream>
#include <thread>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/torch_save/nested_dict.hpp"
#include "lib/checkpoints/programs/torch_save/torch_source.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/unit/checkpoints/programs/dcp_test_support.hpp"
#include "tests/unit/checkpoints/programs/source_test_support.hpp"

using namespace fsdp;

namespace {

/// A copy of the input of a fixture, which may be changed.
struct Copy {
  explicit Copy(const std::string& fixture)
      : path(directory / test::input_of(test::fixture(fixture)).filename().string()) {
    std::filesystem::copy(test::input_of(test::fixture(fixture)), path, std::filesystem::copy_options::recursive);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  test::TempDir directory;
  std::filesystem::path path;
};

void flip_byte(const std::filesystem::path& path, std::uint64_t offset) {
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
  REQUIRE(file.good());
}

std::uint64_t find_in_file(const std::filesystem::path& path, std::span<const std::byte> wanted) {
  const auto at = read_text_file(path).find(test::as_text(wanted));
  REQUIRE(at != std::string::npos);
  return at;
}

/// Reads everything in pieces of `piece` elements from back to front, as several threads might.
std::vector<ReadSum> sums_of(const Source& source, std::uint64_t piece) {
  std::vector<ReadSum> sums;
  for (std::size_t i = source.tensors().size(); i-- > 0;) test::read_pieces(source, i, piece, &sums);
  std::reverse(sums.begin(), sums.end());
  return sums;
}

}  // namespace

TEST_SUITE("source/sums") {
  TEST_CASE("verify_sums: finds a flipped byte, in any order of reading") {
    for (const auto* fixture : {"pt_t211_gpt_full", "dcp_t211_ws2_app", "fsdp2_t211_ws4_tp"}) {
      CAPTURE(fixture);
      const Copy copy(fixture);
      const auto source = open_source(copy.path);
      const auto& tensors = source->tensors();
      const auto largest = static_cast<std::size_t>(
          std::max_element(tensors.begin(), tensors.end(),
                           [](const auto& a, const auto& b) { return a.size_bytes() < b.size_bytes(); }) -
          tensors.begin());
      CHECK_NOTHROW(source->verify_sums(sums_of(*source, 1000)));
      // One piece in one file has the beginning of the first row.
      test::Bytes wanted = test::read_whole(*source, largest);
      wanted.resize(16);
      std::filesystem::path file = copy.path;
      if (std::filesystem::is_directory(copy.path)) {
        for (const auto& candidate : source->info().files) {
          if (read_text_file(candidate).find(test::as_text(wanted)) != std::string::npos) file = candidate;
        }
      }
      flip_byte(file, find_in_file(file, wanted) + 3);
      for (const std::uint64_t piece : {std::uint64_t{13}, std::uint64_t{1} << 30}) {
        CHECK_THROWS_WITH_AS(source->verify_sums(sums_of(*source, piece)), doctest::Contains("CRC-32"), FormatError);
      }
    }
  }

  TEST_CASE("verify_sums: finds nothing without recorded sums; zstd items check themselves") {
    const auto no_sums = open_source(test::input_of(test::fixture("pt_t211_nocrc")));
    CHECK(sums_of(*no_sums, 10).empty());
    const Copy copy("dcp_t211_ws2_zstd");
    flip_byte(copy.path / "__0_0.distcp", std::filesystem::file_size(copy.path / "__0_0.distcp") / 2);
    const auto source = open_source(copy.path);
    CHECK_THROWS_AS(sums_of(*source, 1u << 30), FormatError);
  }
}

TEST_SUITE("source/threads") {
  TEST_CASE("Source: several threads can read one source") {
    for (const auto* fixture :
         {"dcp_t211_ws2_manyfiles", "fsdp2_t211_ws4_tp", "dcp_t211_ws2_stformat", "pt_t211_zoo"}) {
      CAPTURE(fixture);
      const auto alone = open_source(test::input_of(test::fixture(fixture)));
      const auto shared = open_source(test::input_of(test::fixture(fixture)));
      std::vector<test::Bytes> truth;
      for (std::size_t i = 0; i < alone->tensors().size(); ++i) truth.push_back(test::read_whole(*alone, i));
      std::atomic<int> wrong = 0;
      {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 4; ++thread) {
          threads.emplace_back([&] {
            std::vector<ReadSum> sums;
            for (std::size_t i = 0; i < truth.size(); ++i) wrong += test::read_whole(*shared, i, &sums) != truth[i];
            shared->verify_sums(std::move(sums));
          });
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_SUITE("source/directories") {
  TEST_CASE("use_collectives=False: a missing rank is refused") {
    const Copy last("dcp_t211_ws2_nocollectives"), first("dcp_t211_ws2_nocollectives");
    std::filesystem::remove(last.path / "__1.metadata");
    CHECK_THROWS_WITH_AS(open_source(last.path), doctest::Contains("a rank's part may be missing"), FormatError);
    std::filesystem::remove(first.path / "__0.metadata");
    CHECK_THROWS_AS(open_source(first.path), FormatError);
  }

  TEST_CASE("DCP: missing and short data files are reported on opening") {
    const Copy missing("dcp_t211_ws2_app"), cut("dcp_t211_ws2_app");
    std::filesystem::remove(missing.path / "__1_0.distcp");
    CHECK_THROWS_WITH_AS(open_source(missing.path), doctest::Contains("__1_0.distcp: is missing"), FormatError);
    std::filesystem::permissions(cut.path / "__1_0.distcp", std::filesystem::perms::owner_all);
    std::filesystem::resize_file(cut.path / "__1_0.distcp", 100);
    CHECK_THROWS_WITH_AS(open_source(cut.path), doctest::Contains("cut short"), FormatError);
  }

  TEST_CASE("fsdp-finetune: run.json gives producer, world size and model configuration") {
    const test::TempDir directory;
    test::SmallCheckpoint().write(directory.path());
    CHECK(open_source(directory.path())->model_config().is_null());
    test::write_file(directory / "run.json", R"({"format": "other"})");
    CHECK(open_source(directory.path())->info().producer != "fsdp-finetune");
    test::write_file(directory / "run.json",
                     R"({"format": "fsdp-run", "world_size": 5, "model": {"architecture": "mingpt"}})");
    const auto source = open_source(directory.path());
    CHECK(source->info().producer == "fsdp-finetune");
    CHECK(source->info().world_size == 5);
    CHECK(source->model_config()["architecture"] == "mingpt");
  }

  TEST_CASE("safetensors: an index takes precedence, then model.safetensors, then model*.safetensors") {
    const test::TempDir directory;
    const std::array<float, 2> numbers{1, 2};
    const auto write = [&](const char* file, const char* tensor) {
      const ShardRecord record{tensor, DType::f32, {2}, {0}, {2}, std::as_bytes(std::span(numbers))};
      write_safetensors(directory / file, {&record, 1}, {{"format", "pt"}});
    };
    write("other.safetensors", "x");
    CHECK_THROWS_WITH_AS(open_source(directory.path()), doctest::Contains("model*.safetensors"), FormatError);
    write("model-00001-of-00002.safetensors", "a");
    write("model-00002-of-00002.safetensors", "b");
    auto source = open_source(directory.path());
    CHECK(source->tensors().size() == 2);
    CHECK(source->info().metadata.at("format") == "pt");
    write("model-00003-of-00003.safetensors", "c");
    CHECK_THROWS_WITH_AS(open_source(directory.path()),
                         doctest::Contains("model-00001-of-00003.safetensors: is missing"), MissingInput);
    write("model-00003-of-00003.safetensors", "a");
    CHECK_THROWS_WITH_AS(open_source(directory.path()), doctest::Contains("is also in"), FormatError);
    write("model.safetensors", "a");
    CHECK(open_source(directory.path())->tensors().size() == 1);
    test::write_file(directory / "model.safetensors.index.json",
                     R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
    CHECK_THROWS_WITH_AS(open_source(directory.path()), doctest::Contains("holds two models: model.safetensors"),
                         FormatError);
    std::filesystem::remove(directory / "model.safetensors");
    source = open_source(directory.path());
    REQUIRE(source->tensors().size() == 1);
    CHECK(source->tensors()[0].name == "a");
    CHECK(open_source(directory / "model.safetensors.index.json")->tensors().size() == 1);
    CHECK(open_source(directory / "other.safetensors")->tensors()[0].name == "x");
  }

  TEST_CASE("safetensors shards: a missing rank is refused") {
    const Copy copy("dcp_t211_ws2_hf_sharded");
    CHECK(open_source(copy.path)->tensors()[0].num_shards >= 1);
    std::filesystem::remove(copy.path / "shard-00001-model-00001-of-00001.safetensors");
    CHECK_THROWS_WITH_AS(open_source(copy.path), doctest::Contains("a rank's part may be missing"), FormatError);
  }

  TEST_CASE("open_source: refuses files that are not checkpoints") {
    const test::TempDir directory;
    CHECK_THROWS_WITH_AS(open_source(directory.path()), doctest::Contains(".metadata"), FormatError);
    CHECK_THROWS_AS(open_source(directory / "absent"), MissingInput);
    for (const auto* text : {"", "x", "hello world, this is a text", "\x80\x02K\x01.", "PK\3\4"}) {
      test::write_file(directory / "file", text);
      CHECK_THROWS_AS(open_source(directory / "file"), FormatError);
    }
    std::string tar(512, '\0');
    tar.replace(257, 5, "ustar");
    test::write_file(directory / "file", tar);
    CHECK_THROWS_WITH_AS(open_source(directory / "file"), doctest::Contains("tar"), FormatError);
  }
}

TEST_SUITE("source/torch") {
  TEST_CASE("TorchSource: tied tensors share a storage, and views need more bytes than they have") {
    const TorchSource zoo(test::input_of(test::fixture("pt_t211_zoo")));
    const auto number = [&](const char* name) { return test::number_of(zoo, name); };
    CHECK(zoo.storage_number(number("tied.a")) == zoo.storage_number(number("tied.b")));
    CHECK(zoo.storage_number(number("f32")) != zoo.storage_number(number("i32")));
    CHECK(zoo.tensors()[number("slice_of_big")].stored_bytes > zoo.tensors()[number("slice_of_big")].size_bytes());
    CHECK(zoo.prefers_whole(number("base.t")));
    CHECK_FALSE(zoo.prefers_whole(number("f32")));
  }

  TEST_CASE("TorchSource: reads a legacy file whose object exceeds the first read") {
    const test::TempDir directory;
    constexpr int entries = 200'000;  // some megabytes
    PickleWriter pickle;
    pickle.empty_dict();
    pickle.mark();
    for (int i = 0; i < entries; ++i) {
      pickle.string("entry number " + std::to_string(i));
      pickle.integer(i);
    }
    pickle.set_items();
    const std::string head("\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\2M\xe9\3.", 21);
    PickleWriter machine;
    machine.json({{"little_endian", true}});
    test::write_file(directory / "old.pt", head + machine.finish() + pickle.finish() + std::string("\x80\2].", 4));
    const auto source = open_source(directory / "old.pt");
    CHECK(source->info().format == "torch legacy");
    REQUIRE(source->values().size() == entries);
    CHECK(*source->value(entries - 1).value->integer() == entries - 1);
  }

  TEST_CASE("flatten: paths keep the structure that names lose") {
    const auto source = open_source(test::input_of(test::fixture("pt_t211_nontensors")));
    const auto& values = source->values();
    const auto found = std::find_if(values.begin(), values.end(), [](const auto& v) { return v.name == "list.1.0"; });
    REQUIRE(found != values.end());
    CHECK(found->path == StatePath{"list", std::int64_t{1}, std::int64_t{0}});
    const auto key =
        std::find_if(values.begin(), values.end(), [](const auto& v) { return v.name == "dict_int_keys.1"; });
    REQUIRE(key != values.end());
    CHECK(key->path == StatePath{"dict_int_keys", "1"});
  }
}
