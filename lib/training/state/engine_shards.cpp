#include "lib/training/state/engine_shards.hpp"

#include <fmt/format.h>

#include <map>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/state/load/row_reader.hpp"
#include "lib/training/state/snapshot.hpp"

namespace fsdp {
namespace {

constexpr const char* kSteps = "optim.steps";

void publish(const std::vector<std::string>& parts, const std::filesystem::path& temporary,
             const std::filesystem::path& directory) {
  std::vector<DcpItem> items;
  for (const auto& part : parts) {
    if (part.empty()) continue;
    const auto shards = read_report(part);
    items.insert(items.end(), shards.items.begin(), shards.items.end());
  }
  write_dcp_metadata(temporary, items);
  sync_directory(temporary);
  std::filesystem::rename(temporary, directory);
}

/// Removes the files of an interrupted save; anything else stays and is named.
void remove_leftovers(const std::filesystem::path& temporary) {
  const auto status = std::filesystem::symlink_status(temporary);
  if (!std::filesystem::exists(status)) return;
  const auto refuse = [&](const std::filesystem::path& what) {
    throw RequestError(what.string() + ": is in the way of a save, and was not made by one: move it elsewhere");
  };
  if (!std::filesystem::is_directory(status)) refuse(temporary);
  for (const auto& entry : std::filesystem::directory_iterator(temporary)) {
    const auto name = entry.path().filename().string();
    if (!entry.is_regular_file() || (!name.ends_with(".distcp") && !name.starts_with(".metadata")))
      refuse(entry.path());
  }
  std::filesystem::remove_all(temporary);
}

/// The rows of this rank of every tensor, and what was read for them, to be compared with the checkpoint's sums.
std::vector<ReadSum> read_rows(const Source& source, const std::string& path, Engine& engine, Optimizer* optimizer) {
  std::map<std::string, std::size_t> numbers;
  for (std::size_t t = 0; t < source.tensors().size(); ++t) numbers[source.tensors()[t].name] = t;
  detail::RowReader reader(source);
  const auto read = [&](const std::string& key, const StatePath&, const OptimizerState& state) {
    const auto found = numbers.find(key);
    if (found == numbers.end()) throw FormatError(path + ": has no '" + key + "'");
    if (source.tensors()[found->second].shape != state.shape) {
      throw FormatError(fmt::format("{}: '{}' has the shape [{}], not [{}]", path, key,
                                    fmt::join(source.tensors()[found->second].shape, ", "),
                                    fmt::join(state.shape, ", ")));
    }
    if (state.num_rows == 0) return;
    const auto rows = reader.rows({found->second, 0}, state.shape, state.first_row, state.num_rows);
    const auto local = state.values.get().narrow(0, 0, state.num_rows);
    if (!state.constant) {
      local.copy_(rows);
    } else if (!local.cpu().equal(rows)) {
      throw FormatError(path + ": '" + key + "' is not the table that this program computes with");
    }
  };
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    auto shard = engine.shard(i, Access::update);
    visit_states(engine, optimizer, i, read);
    shard.finish();
  }
  return reader.sums();
}

std::int64_t read_steps(const Source& source, const std::string& path) {
  for (std::size_t v = 0; v < source.values().size(); ++v) {
    if (source.values()[v].name != kSteps) continue;
    const auto loaded = source.value(v);
    if (const auto* steps = loaded.value->integer()) return *steps;
  }
  throw FormatError(path + ": has no '" + kSteps + "'");
}

}  // namespace

void save_shards(ProcessGroup& world, const Mesh& mesh, Engine& engine, const Optimizer* optimizer,
                 const std::filesystem::path& directory) {
  const WithoutAutograd guard;
  const auto temporary = std::filesystem::path(directory) += ".tmp";
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    if (std::filesystem::exists(directory)) throw RequestError(directory.string() + ": is there already");
    remove_leftovers(temporary);
    std::error_code error;
    std::filesystem::create_directories(temporary, error);
    if (error) throw IoError(temporary.string() + ": cannot be made: " + error.message());
  });
  std::string local;
  if (mesh.replicate.rank() == 0) {
    Snapshot snapshot;
    for (std::size_t i = 0; i < engine.num_parameters(); ++i) copy_states(snapshot, engine, optimizer, i, nullptr);
    if (world.rank() == 0 && optimizer != nullptr)
      snapshot.values.push_back({{kSteps, StatePath{"optim", "steps"}}, optimizer->steps()});
    local = write_snapshot(temporary, world.rank(), snapshot);
  }
  const auto parts = world.gather(local, 0);
  run_agreed(world, [&] {
    if (world.rank() == 0) publish(parts, temporary, directory);
  });
}

void load_shards(ProcessGroup& world, Engine& engine, Optimizer* optimizer, const std::filesystem::path& path) {
  const WithoutAutograd guard;
  std::unique_ptr<Source> source;
  std::vector<ReadSum> rest;
  run_agreed(world, [&] {
    source = open_source(path);
    rest = source->verify_sums(read_rows(*source, path.string(), engine, optimizer));
    if (optimizer != nullptr) optimizer->set_steps(read_steps(*source, path.string()));
  });
  const auto all = all_gather_sums(world, rest);
  run_agreed(world, [&] { source->verify_sums(all); });
  engine.sync_parameters();
}

}  // namespace fsdp
