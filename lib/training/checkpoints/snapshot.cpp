#include "lib/training/checkpoints/snapshot.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <ranges>

#include "lib/base/error.hpp"
#include "lib/compute/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

/// By their exponents, in a loop that compilers turn into vectors.
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

Snapshot copy_shards(ModelRuntime& runtime, Optimizer& optimizer) {
  Snapshot snapshot;
  if (auto* store = runtime.store()) snapshot.pinned = store->pin();
  auto& engine = runtime.engine();
  const auto add = [&](const std::string& key, StatePath path, const OptimizerState& state) {
    const auto first = state.saved_elsewhere, rows = state.num_rows - first;
    if (rows == 0) return;
    Shape offsets(state.shape.size(), 0), sizes = state.shape;
    offsets[0] = state.first_row + first;
    sizes[0] = rows;
    SnapshotBlock block{key, std::move(path), state.shape, offsets, sizes, {}, {}, first};
    if (state.values.store() != nullptr) {
      block.stored = state.values.place();
    } else {
      block.data = at::empty(sizes, state.values.dtype());
      runtime.ops().transfer(block.data, state.values.get().narrow(0, first, rows));
    }
    snapshot.blocks.push_back(std::move(block));
  };
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    // A checkpoint of adapters does not repeat their base weights.
    if (runtime.has_adapters() && !runtime.decoder().parameters[i].adapter) continue;
    const auto& layout = engine.layout(i);
    const auto range = engine.range(i);
    add("model." + layout.name, {"model", layout.name},
        {"", layout.shape, engine.stored_master_weight(i), range.first_row, range.num_rows});
    const auto state = [&](const std::string& name) { return "optim.state." + layout.name + "." + name; };
    for (const auto& values : optimizer.states(i)) {
      StatePath path{"optim", "state", layout.name};
      for (const auto part : values.key | std::views::split('.'))
        path.emplace_back(std::string(part.begin(), part.end()));
      add(state(values.key), std::move(path), values);
    }
    if (runtime.world().rank() != 0) continue;
    const StatePath path{"optim", "state", layout.name, "step"};
    const auto steps = optimizer.steps();
    if (optimizer.step_state(i) == StepState::tensor)
      snapshot.blocks.push_back(
          {state("step"), path, {}, {}, {}, at::full({}, static_cast<double>(steps), at::kFloat)});
    if (optimizer.step_state(i) == StepState::number) snapshot.values.push_back({{state("step"), path}, steps});
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
          block.key,
          to_dtype(data.scalar_type()),
          block.global_shape,
          block.offsets,
          block.sizes,
          {static_cast<const std::byte*>(data.const_data_ptr()), static_cast<std::size_t>(data.nbytes())}};
      writer.add_tensor(record, block.path);
    }
    const auto items = writer.finish();
    const auto bytes = serialize_dcp_items(items);
    report = {{"items", nlohmann::json::binary({bytes.begin(), bytes.end()})},
              {"size_bytes", writer.bytes_written()},
              {"crc32", writer.file_crc32()}};
  } catch (const std::exception& error) {
    report = {{"error", error.what()}};
  }
  const auto text = nlohmann::json::to_cbor(report);
  return {text.begin(), text.end()};
}

}  // namespace fsdp
