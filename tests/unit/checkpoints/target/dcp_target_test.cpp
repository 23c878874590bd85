#include "lib/checkpoints/programs/dcp/dcp_target.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include <zlib.h>

#include "lib/base/files/file.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "tests/unit/checkpoints/target/target_test_support.hpp"

using namespace fsdp;

namespace {

std::uint32_t zlib_crc(const std::string& text) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

void put_string(PickleWriter& pickle) { pickle.string("text"); }

}  // namespace

TEST_SUITE("target/dcp_target") {
  TEST_CASE("DcpTarget: ceil(rows / ranks) rows for each rank, no empty pieces, scalars on rank 0") {
    test::MemorySource source;
    source.add("rows", DType::f32, {10, 3}).add("few", DType::f32, {2}).add("scalar", DType::f32, {});
    source.add("empty", DType::f32, {0, 5}).add("flat", DType::f32, {4, 0});
    const test::TempDir directory;
    DcpTarget target({4, {}, {}});
    test::copy_alone(source, target, directory / "dcp");
    const auto metadata = read_dcp_metadata(directory / "dcp");
    const auto chunks = [&](const char* name) {
      std::vector<std::pair<Shape, Shape>> found;
      for (const auto& chunk : metadata.tensors.at(name).chunks) found.emplace_back(chunk.offsets, chunk.sizes);
      return found;
    };
    using Chunks = std::vector<std::pair<Shape, Shape>>;
    CHECK(chunks("rows") == Chunks{{{0, 0}, {3, 3}}, {{3, 0}, {3, 3}}, {{6, 0}, {3, 3}}, {{9, 0}, {1, 3}}});
    CHECK(chunks("few") == Chunks{{{0}, {1}}, {{1}, {1}}});
    CHECK(chunks("scalar") == Chunks{{{}, {}}});
    CHECK(chunks("empty") == Chunks{{{0, 0}, {0, 5}}});
    CHECK(chunks("flat") == Chunks{{{0, 0}, {4, 0}}});
    CHECK(metadata.tensors.at("rows").chunks[2].file == "__2_0.distcp");
    CHECK(test::names_in(directory / "dcp").size() == 6);  // includes the record of the export
    test::check_same_tensors(source, *open_source(directory / "dcp"));
    CHECK_THROWS_AS(DcpTarget({0, {}, {}}), RequestError);
    CHECK_THROWS_AS(DcpTarget({-3, {}, {}}), RequestError);
  }

  TEST_CASE("DcpTarget: passes size and checksum of every other file to extra files") {
    test::MemorySource source;
    source.add("rows", DType::f32, {1000, 3}).add("half", DType::bf16, {7}).add("scalar", DType::f32, {});
    source.add_value("note", {"note"}, put_string);
    const test::TempDir directory;
    std::vector<WrittenFile> told;
    DcpTargetOptions options{3, {"extra.json"}, {}};
    options.extra_files = [&](std::span<const WrittenFile> files) {
      told.assign(files.begin(), files.end());
      return std::vector<std::string>{"the extra file"};
    };
    DcpTarget target(options);
    CopyOptions small;
    small.piece_bytes = 100;
    const auto report = test::copy_alone(source, target, directory / "dcp", small);
    CHECK(read_text_file(directory / "dcp" / "extra.json") == "the extra file");
    CHECK(told.size() == 4);
    std::uint64_t total = std::string("the extra file").size();
    for (const auto& file : told) {
      CAPTURE(file.name);
      const auto text = read_text_file(directory / "dcp" / file.name);
      CHECK(file.size_bytes == text.size());
      CHECK(file.crc32 == zlib_crc(text));
      total += text.size();
    }
    CHECK(report.bytes_written == total);
  }

  TEST_CASE("carry_run_json: a checkpoint of ours stays one with another world size") {
    const test::TempDir directory;
    const auto from = directory / "from";
    test::MemorySource source;
    source.add("model.w", DType::f32, {9, 2}, {"model", "w"});
    DcpTarget first({2, {}, {}});
    test::copy_alone(source, first, from);
    RunManifest manifest;
    manifest.state.step = 41;
    manifest.options = {{"lr", "0.1"}};
    manifest.world_size = 2;
    for (const auto& name : test::names_in(from)) manifest.files[name] = describe_file(from / name);
    write_run_manifest(from, manifest);

    DcpTargetOptions options{3, {}, {}};
    carry_run_json(options, from);
    DcpTarget target(options);
    test::copy_alone(*open_source(from), target, directory / "to");
    const auto carried = read_run_manifest(directory / "to");  // checks the files against the manifest
    CHECK(carried.world_size == 3);
    CHECK(carried.state.step == 41);
    CHECK(carried.options == manifest.options);
    CHECK(carried.files.size() == 4);
    CHECK(carried.files.contains(".metadata"));

    auto text = read_text_file(from / "run.json");
    text.replace(text.find("41"), 2, "42");
    test::write_file(from / "run.json", text);
    DcpTargetOptions damaged;
    CHECK_THROWS_WITH_AS(carry_run_json(damaged, from), doctest::Contains("checksum"), FormatError);
    test::write_file(from / "run.json", "{");
    CHECK_THROWS_AS(carry_run_json(damaged, from), FormatError);
    DcpTargetOptions none;
    carry_run_json(none, directory.path());
    CHECK(none.extra_names.empty());
  }

  TEST_CASE("group_values: lists without tensors and dicts are one item, as PyTorch has them") {
    test::MemorySource source;
    const auto value = [&](const char* name, StatePath path) { source.add_value(name, std::move(path), put_string); };
    value("plain.0", {"plain", 0});
    value("plain.1.0", {"plain", 1, 0});
    value("plain.1.1", {"plain", 1, 1});
    value("groups.0.lr", {"groups", 0, "lr"});  // a dict: opened
    value("groups.0.betas.0", {"groups", 0, "betas", 0});
    value("groups.0.betas.1", {"groups", 0, "betas", 1});
    value("groups.1", {"groups", 1});
    value("mixed.1", {"mixed", 1});
    source.add("mixed.0", DType::f32, {2}, {"mixed", 0});
    value("holes.0", {"holes", 0});
    value("holes.2", {"holes", 2});
    value("renamed", {"list", 0});
    value("scalar", {"scalar"});
    std::map<std::string, std::size_t> sizes;
    for (const auto& group : detail::group_values(source)) sizes[group.name] = group.values.size();
    CHECK(sizes == std::map<std::string, std::size_t>{{"plain", 3},
                                                      {"groups.0.lr", 1},
                                                      {"groups.0.betas", 2},
                                                      {"groups.1", 1},
                                                      {"mixed.1", 1},
                                                      {"holes.0", 1},
                                                      {"holes.2", 1},
                                                      {"renamed", 1},
                                                      {"scalar", 1}});
    const auto groups = detail::group_values(source);
    const auto plain =
        std::find_if(groups.begin(), groups.end(), [](const auto& group) { return group.name == "plain"; });
    CHECK(plain->path == StatePath{"plain"});
    PickleWriter pickle;
    detail::emit_group(pickle, source, *plain);
    const auto document = read_pickle({std::make_shared<const std::string>(pickle.finish()), 0, "memory", 0});
    REQUIRE(document.root->list() != nullptr);
    REQUIRE(document.root->list()->items.size() == 2);
    CHECK(document.root->list()->items[1]->list()->items.size() == 2);
  }
}
