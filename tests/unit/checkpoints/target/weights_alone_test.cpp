#include "lib/checkpoints/programs/fsdp_finetune/weights_alone.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_json.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "tests/unit/checkpoints/target/target_test_support.hpp"

using namespace fsdp;

namespace {

/// A checkpoint as a run of two ranks saves it, with a tied head.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder, std::int64_t step) {
  const auto path = folder / ("step-0000000" + std::to_string(step));
  std::filesystem::create_directories(path);
  std::vector<DcpItem> items;
  std::vector<WrittenFile> files;
  for (const int rank : {0, 1}) {
    DcpShardWriter writer(path, rank);
    for (const auto* key : {"optim.state.w.exp_avg", "model.w", "optim.state.w.exp_avg_sq"}) {
      const auto bytes = test::random_bytes(4 * 3 * 4, static_cast<unsigned>(items.size() + 7));
      writer.add_tensor({key, DType::f32, {8, 3}, {4 * rank, 0}, {4, 3}, bytes}, {key});
    }
    if (rank == 0) writer.add_value("run.format", {"run", "format"}, "fsdp-run");
    const auto written = writer.finish();
    items.insert(items.end(), written.begin(), written.end());
    files.push_back({"__" + std::to_string(rank) + "_0.distcp", writer.bytes_written(), writer.file_crc32()});
  }
  for (std::size_t i = 0, n = items.size(); i < n; ++i) {
    if (items[i].key != "model.w") continue;
    auto twin = items[i];
    twin.key = "model.tied";
    twin.path = {"model.tied"};
    items.push_back(twin);
  }
  write_dcp_metadata(path, items);
  const auto metadata = read_text_file(path / ".metadata");
  files.push_back({".metadata", metadata.size(), crc32(0, std::as_bytes(std::span(metadata)))});
  replace_file(path / "run.json", run_json_text({{"world_size", 2}, {"note", "first"}}, files));
  return path;
}

nlohmann::json run_of(const std::filesystem::path& checkpoint) { return read_run_json(checkpoint / "run.json"); }

std::map<std::string, test::Bytes> weights_of(const std::filesystem::path& checkpoint) {
  std::map<std::string, test::Bytes> weights;
  const auto source = open_source(checkpoint);
  for (std::size_t i = 0; i < source->tensors().size(); ++i)
    if (source->tensors()[i].name.starts_with("model."))
      weights[source->tensors()[i].name] = test::read_whole(*source, i);
  return weights;
}

const auto kGoOn = [] { return false; };

}  // namespace

TEST_SUITE("target/weights_alone") {
  TEST_CASE("WeightsAlone: weights, ties and values stay bit for bit, the optimizer's state goes") {
    const test::TempDir directory;
    const auto path = write_checkpoint(directory.path(), 3);
    const auto before = weights_of(path);
    const auto size = std::filesystem::file_size(path / "__0_0.distcp");
    {
      WeightsAlone copy(path);
      CHECK_FALSE(copy.is_done());
      REQUIRE(copy.write(kGoOn));
      CHECK(weights_of(path) == before);  // the checkpoint is whole until it is replaced
      auto run = run_of(path);
      run["note"] = "changed meanwhile";
      std::vector<WrittenFile> files;
      for (const auto& [name, info] : run["files"].items()) files.push_back({name, info["size_bytes"], info["crc32"]});
      replace_file(path / "run.json", run_json_text(run, files));
      CHECK(copy.replace());
    }
    CHECK(weights_of(path) == before);
    CHECK(before.size() == 2);
    CHECK(std::filesystem::file_size(path / "__0_0.distcp") < size / 2);
    const auto run = run_of(path);
    CHECK(run["weights_alone"] == true);
    CHECK(run["note"] == "changed meanwhile");
    for (const auto& [name, info] : run["files"].items()) {
      const auto found = describe_file(path / name);
      CHECK(found.size_bytes == info["size_bytes"]);
      CHECK(found.crc32 == info["crc32"]);
    }
    const auto source = open_source(path);
    CHECK(source->tensors().size() == 2);
    CHECK(source->values().size() == 1);
    CHECK(test::names_in(directory.path()) == std::set<std::string>{"step-00000003"});
    CHECK(WeightsAlone(path).is_done());
  }

  TEST_CASE("WeightsAlone: a rewrite that is stopped, or never ends, leaves the checkpoint as it was") {
    const test::TempDir directory;
    const auto path = write_checkpoint(directory.path(), 3);
    const auto run = read_text_file(path / "run.json");
    {
      WeightsAlone copy(path);
      CHECK_FALSE(copy.write([] { return true; }));
    }
    {
      WeightsAlone copy(path);
      REQUIRE(copy.write(kGoOn));
    }
    CHECK(test::names_in(directory.path()) == std::set<std::string>{"step-00000003"});
    CHECK(read_text_file(path / "run.json") == run);
    CHECK_NOTHROW(read_dcp_metadata(path));
  }

  TEST_CASE("WeightsAlone: a checkpoint that was saved anew, is gone or holds other files is left alone") {
    const test::TempDir directory;
    const auto path = write_checkpoint(directory.path(), 3);
    {
      WeightsAlone copy(path);
      REQUIRE(copy.write(kGoOn));
      auto run = run_of(path);
      replace_file(path / "run.json", run_json_text(run, {}));
      CHECK_FALSE(copy.replace());
      std::filesystem::remove_all(path);
      CHECK_FALSE(copy.replace());
    }
    const auto other = write_checkpoint(directory.path(), 4);
    test::write_file(other / "notes.txt", "mine");
    CHECK_THROWS_AS(WeightsAlone{other}, FormatError);
    CHECK(saved_steps(directory.path()) == std::vector<std::int64_t>{4});
  }
}
