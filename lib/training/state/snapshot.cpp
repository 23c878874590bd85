#include "lib/training/state/snapshot.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <ranges>

#include "lib/base/types/error.hpp"
#include "lib/compute/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

/// Tests exponent bits so that the loop vectorises.
template <typename Bits>
bool all_finite(const Bits* values, std::int64_t count, Bits exponent) {
  Bits bad = 0;
  for (std::int64_t i = 0; i < count; ++i) bad |= static_cast<Bits>((values[i] & exponent) == exponent);
  return bad == 0;
}

bool all_finite(const at::Tensor& values) {
  const auto n = values.numel();
  if (!values.is_floating_point()) return true;  // codes
  if (values.scalar_type() == at::kBFloat16)
    return all_finite(static_cast<const std::uint16_t*>(values.const_data_ptr()), n, std::uint16_t{0x7f80});
  return all_finite(static_cast<const std::uint32_t*>(values.const_data_ptr()), n, std::uint32_t{0x7f800000});
}

/// \throws FormatError naming the tensor
void require_finite(const std::string& key, const at::Tensor& data) {
  if (all_finite(data)) return;
  throw FormatError(fmt::format("'{}' has values that are not finite, so this state is not saved", key));
}

at::Tensor data_of(const SnapshotBlock& block, const Snapshot& snapshot) {
  if (!block.stored) return block.data;
  return snapshot.pinned->read(*block.stored).narrow(0, block.first_row, block.sizes[0]);
}

}  // namespace

void visit_states(Engine& engine, const Optimizer* optimizer, std::size_t param, const StateVisit& visit) {
  const auto& layout = engine.layout(param);
  const auto range = engine.range(param);
  visit("model." + layout.name, {"model", layout.name},
        {.key = {},
         .shape = layout.shape,
         .values = engine.stored_master_weight(param),
         .first_row = range.first_row,
         .num_rows = range.num_rows});
  if (optimizer == nullptr) return;
  for (const auto& state : optimizer->states(param)) {
    StatePath path{"optim", "state", layout.name};
    for (const auto part : state.key | std::views::split('.')) path.emplace_back(std::string(part.begin(), part.end()));
    visit(fmt::format("optim.state.{}.{}", layout.name, state.key), path, state);
  }
}

void copy_states(Snapshot& snapshot, Engine& engine, const Optimizer* optimizer, std::size_t param, const Ops* ops) {
  const auto add = [&](const std::string& key, const StatePath& path, const OptimizerState& state) {
    const auto first = state.saved_elsewhere, rows = state.num_rows - first;
    if (rows == 0) return;
    SnapshotBlock block{.key = key,
                        .path = path,
                        .global_shape = state.shape,
                        .offsets = Shape(state.shape.size(), 0),
                        .sizes = state.shape,
                        .first_row = first};
    block.offsets[0] = state.first_row + first;
    block.sizes[0] = rows;
    if (snapshot.pinned && state.values.store() != nullptr) {
      block.stored = state.values.place();
    } else {
      block.data = at::empty(block.sizes, state.values.dtype());
      const auto values = state.values.get().narrow(0, first, rows);
      ops != nullptr ? ops->transfer(block.data, values) : static_cast<void>(block.data.copy_(values));
    }
    snapshot.blocks.push_back(std::move(block));
  };
  const auto held = snapshot.pinned ? StoreHold() : engine.stored_master_weight(param).hold(Access::read);
  visit_states(engine, optimizer, param, add);
}

Snapshot copy_shards(ModelRuntime& runtime, Optimizer& optimizer) {
  Snapshot snapshot;
  if (auto* store = runtime.store()) snapshot.pinned = store->pin();
  auto& engine = runtime.engine();
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    // A checkpoint of adapters does not repeat their base weights.
    if (runtime.has_adapters() && !runtime.decoder().parameters[i].with_adapter()) continue;
    copy_states(snapshot, engine, &optimizer, i, &runtime.ops());
    if (runtime.world().rank() != 0) continue;
    const auto& name = engine.layout(i).name;
    const StatePath path{"optim", "state", name, "step"};
    const auto key = "optim.state." + name + ".step";
    const auto steps = optimizer.steps();
    if (optimizer.step_state(i) == StepState::tensor)
      snapshot.blocks.push_back(
          {.key = key, .path = path, .data = at::full({}, static_cast<double>(steps), at::kFloat)});
    if (optimizer.step_state(i) == StepState::number) snapshot.values.push_back({{key, path}, steps});
  }
  return snapshot;
}

void add_optimizer_values(Snapshot& snapshot, ModelRuntime& runtime, const Optimizer& optimizer, double lr,
                          bool decay_all) {
  for (int group = 0; group < 2; ++group) {
    const bool decay = group == 0;
    nlohmann::json names = nlohmann::json::array();
    const auto& table = runtime.decoder().parameters;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (!optimizer.is_frozen(i) && (table[i].decay || decay_all) == decay) names.push_back(table[i].name);
    }
    if (names.empty()) continue;
    auto fields = optimizer.group_fields();
    fields["lr"] = lr;
    fields["weight_decay"] = decay ? optimizer.options().weight_decay : 0.0;
    fields["params"] = names;
    for (const auto& [field, value] : fields.items()) {
      snapshot.values.push_back({{fmt::format("optim.param_groups.{}.{}", group, field),
                                  StatePath{"optim", "param_groups", std::int64_t{group}, field}},
                                 value});
    }
  }
}

void add_run_values(Snapshot& snapshot, const std::string& key, const StatePath& path, const nlohmann::json& value) {
  if (!value.is_object()) {
    snapshot.values.push_back({{key, path}, value});
    return;
  }
  for (const auto& [name, part] : value.items()) {
    auto place = path;
    place.emplace_back(name);
    add_run_values(snapshot, key + "." + name, place, part);
  }
}

std::string write_snapshot(const std::filesystem::path& directory, int rank, const Snapshot& snapshot) {
  nlohmann::json report;
  try {
    DcpShardWriter writer(directory, rank);
    for (const auto& [name, value] : snapshot.values) writer.add_value(name.first, name.second, value);
    for (const auto& block : snapshot.blocks) {
      const auto data = data_of(block, snapshot);
      require_finite(block.key, data);
      const ShardRecord record{
          .name = block.key,
          .dtype = to_dtype(data.scalar_type()),
          .global_shape = block.global_shape,
          .offsets = block.offsets,
          .sizes = block.sizes,
          .data = {static_cast<const std::byte*>(data.const_data_ptr()), static_cast<std::size_t>(data.nbytes())}};
      writer.add_tensor(record, block.path);
    }
    const auto items = serialize_dcp_items(writer.finish());
    report["items"] = nlohmann::json::binary({items.begin(), items.end()});
    report["size_bytes"] = writer.bytes_written();
    report["crc32"] = writer.file_crc32();
  } catch (const std::exception& error) {
    report = {{"error", error.what()}};
  }
  const auto text = nlohmann::json::to_cbor(report);
  return {text.begin(), text.end()};
}

WrittenShards read_report(const std::string& report) {
  const auto json = nlohmann::json::from_cbor(report);
  if (json.contains("error")) throw IoError(json["error"].get<std::string>());
  const auto& bytes = json["items"].get_binary();
  return {.items = deserialize_dcp_items({reinterpret_cast<const char*>(bytes.data()), bytes.size()}),
          .size_bytes = json["size_bytes"],
          .crc32 = json["crc32"]};
}

}  // namespace fsdp
