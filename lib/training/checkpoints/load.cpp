#include "lib/training/checkpoints/load.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/error.hpp"
#include "lib/compute/ops/nf4.hpp"
#include "lib/compute/tensor/parallel.hpp"
#include "lib/compute/tensor/scalar_type.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/transform/adapter_plan.hpp"
#include "lib/files/transform/base_weights.hpp"
#include "lib/files/transform/model_source.hpp"
#include "lib/files/transform/model_tensors.hpp"
#include "lib/files/transform/quantize.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {

void WeightHash::add(std::size_t param, std::int64_t first, const at::Tensor& values) {
  std::atomic<std::uint64_t> sum = 0;
  const auto item = static_cast<std::size_t>(values.element_size());
  parallel_for(values.numel(), std::int64_t{1} << 18, [&](std::int64_t begin, std::int64_t end) {
    const auto* data = static_cast<const std::byte*>(values.const_data_ptr()) + static_cast<std::size_t>(begin) * item;
    sum += mark_of_elements(param, static_cast<std::uint64_t>(first + begin),
                            {data, static_cast<std::size_t>(end - begin) * item}, item);
  });
  sum_ += sum;
}

std::string WeightHash::of_all(ProcessGroup& ranks) const {
  std::uint64_t total = 0;
  for (const auto& part : ranks.gather({reinterpret_cast<const char*>(&sum_), sizeof(sum_)}, 0)) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, part.data(), sizeof(sum));
    total += sum;
  }
  return ranks.broadcast_text(mark_of_sum(total), 0);
}

}  // namespace fsdp

namespace fsdp::detail {
namespace {

std::span<std::byte> bytes_of(at::Tensor& values) {
  return {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())};
}

}  // namespace

at::Tensor RowReader::rows(const TensorOffset& place, Shape shape, std::int64_t first_row, std::int64_t num_rows) {
  const auto row_elements = num_elements(shape) / shape.front();
  shape.front() = num_rows;
  auto values = at::empty(shape, to_scalar_type(source_.tensors()[place.tensor].dtype));
  source_.read(place.tensor, place.first + static_cast<std::uint64_t>(first_row * row_elements),
               static_cast<std::uint64_t>(values.numel()), bytes_of(values), &sums_);
  return values;
}

at::Tensor RowReader::elements(std::size_t tensor, std::int64_t first, std::int64_t count) {
  auto values = at::empty({count}, to_scalar_type(source_.tensors()[tensor].dtype));
  source_.read(tensor, static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(count), bytes_of(values), &sums_);
  return values;
}

at::Tensor RowReader::bytes(std::size_t tensor, std::int64_t first, std::int64_t count) {
  const auto item = static_cast<std::int64_t>(dtype_size_bytes(source_.tensors()[tensor].dtype));
  auto values = at::empty({count}, at::kByte);
  source_.read(tensor, static_cast<std::uint64_t>(first / item), static_cast<std::uint64_t>(count / item),
               bytes_of(values), &sums_);
  return values;
}

namespace {

constexpr std::int64_t kBlock_bytes = kQuantizedBlock / 2;
constexpr int kPadding = 0x77;  // two codes of 0

std::string_view bytes_of(const at::Tensor& values) {
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

/// Computes the scales of a matrix whose blocks are spread over ranks. One rank gathers all blocks and computes.
NestedScales scales_of_all(const Mesh& mesh, const at::Tensor& absmax, std::int64_t blocks) {
  std::string whole, made;
  for (const auto& part : mesh.shard.ranks->gather(bytes_of(absmax), 0)) whole += part;
  if (mesh.shard.rank() == 0 && mesh.replicate.rank() == 0) {
    const auto scales = quantize_scales(at::from_blob(whole.data(), {blocks}, at::kFloat));
    for (const auto* part : {&scales.codes, &scales.absmax, &scales.offset}) made += bytes_of(*part);
  }
  if (mesh.shard.rank() == 0) made = mesh.replicate.ranks->broadcast_text(made, 0);
  made = mesh.shard.ranks->broadcast_text(made, 0);
  NestedScales scales{at::empty({blocks}, at::kByte),
                      at::empty({(blocks + kNestedBlock - 1) / kNestedBlock}, at::kFloat), at::empty({1}, at::kFloat)};
  const char* next = made.data();
  for (const auto* part : {&scales.codes, &scales.absmax, &scales.offset}) {
    std::memcpy(part->data_ptr(), next, part->nbytes());
    next += part->nbytes();
  }
  return scales;
}

}  // namespace

QuantizedLoader::QuantizedLoader(ModelRuntime& runtime) : runtime_(runtime) {
  const auto& table = runtime.decoder().parameters;
  for (std::size_t i = 0; i < table.size(); ++i) numbers_.emplace(table[i].name, i);
}

bool QuantizedLoader::is_quantized(std::size_t param) const {
  return runtime_.decoder().parameters[param].stands_for > 0;
}

void QuantizedLoader::put(const std::string& name, const at::Tensor& rows) {
  auto& engine = runtime_.engine();
  const auto range = engine.range(param(name));
  if (range.num_rows > 0) engine.master_weight(param(name)).narrow(0, 0, range.num_rows).copy_(rows);
}

void QuantizedLoader::put_own_rows(const std::string& name, const at::Tensor& whole) {
  const auto range = runtime_.engine().range(param(name));
  put(name, whole.narrow(0, std::min(range.first_row, whole.size(0)), range.num_rows));
}

void QuantizedLoader::read(std::size_t i, RowReader& reader, std::size_t tensor, const StoredNf4* stored,
                           WeightHash* hash) {
  if (stored != nullptr) return read_stored(i, reader, *stored, hash);
  const auto& spec = runtime_.decoder().parameters[i];
  const auto range = runtime_.engine().range(i);
  absmax_[i] = at::empty({range.num_rows}, at::kFloat);
  if (range.num_rows == 0) return;
  const auto first = range.first_row * kQuantizedBlock;
  const auto count = std::min(range.num_rows * kQuantizedBlock, spec.stands_for - first);
  const auto values = reader.elements(tensor, first, count);
  if (hash != nullptr) hash->add(i, first, values);
  const auto made = quantize_nf4(values.to(at::kFloat));
  if (!made.absmax.isfinite().all().item<bool>() || values.isnan().any().item<bool>())
    throw FormatError(reader.source().info().directory.string() + ": '" + spec.name +
                      "' has elements that are not finite, so it cannot be kept in 4 bits (fsdp-ckpt-convert --check)");
  put(spec.name, made.codes);
  absmax_[i] = made.absmax;
}

void QuantizedLoader::read_stored(std::size_t i, RowReader& reader, const StoredNf4& stored, WeightHash* hash) {
  const auto& spec = runtime_.decoder().parameters[i];
  const auto range = runtime_.engine().range(i);
  const auto read_scales = [&](const char* name, std::size_t tensor) {
    const auto scale = param(spec.name + name);
    const auto rows = runtime_.engine().range(scale);
    if (rows.num_rows == 0) return;
    const auto values = reader.elements(tensor, rows.first_row, rows.num_rows);
    if (hash != nullptr) hash->add(scale, rows.first_row, values);
    put(spec.name + name, values);
  };
  read_scales(kAbsmax, stored.absmax);
  if (stored.nested_absmax) {
    read_scales(kNestedAbsmax, *stored.nested_absmax);
    put_own_rows(spec.name + kNestedOffset, at::full({1}, stored.nested_offset, at::kFloat));
  }
  if (range.num_rows == 0) return;
  const auto stored_bytes = static_cast<std::int64_t>(reader.source().tensors()[stored.codes].size_bytes());
  const auto first = range.first_row * kBlock_bytes;
  const auto count = std::min(range.num_rows * kBlock_bytes, stored_bytes - first);
  auto codes = at::full({range.num_rows * kBlock_bytes}, kPadding, at::kByte);
  const auto values = reader.bytes(stored.codes, first, count);
  if (hash != nullptr) hash->add(i, first, values);
  codes.narrow(0, 0, count).copy_(values);
  put(spec.name, codes.view({range.num_rows, kBlock_bytes}));
}

void QuantizedLoader::finish() {
  const bool nested = runtime_.decoder().options.quantize.double_quant;
  for (const auto& [i, absmax] : absmax_) {
    const auto& name = runtime_.decoder().parameters[i].name;
    if (!nested) {
      put(name + kAbsmax, absmax);
      continue;
    }
    const auto scales = scales_of_all(runtime_.mesh(), absmax, runtime_.decoder().parameters[i].shape[0]);
    put_own_rows(name + kAbsmax, scales.codes);
    put_own_rows(name + kNestedAbsmax, scales.absmax);
    put_own_rows(name + kNestedOffset, scales.offset);
  }
  absmax_.clear();
}

}  // namespace fsdp::detail

namespace fsdp {
namespace {

/// NaN equals NaN here: a damaged model is not an untied one.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.to(at::kFloat), y = b.to(at::kFloat);
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), static_cast<std::size_t>(x.nbytes())) == 0;
}

/// Selects the storages that this rank compares, of those that several ranks read in parts: the rank that read the
/// beginning of a storage compares it, since the rank has the file open already.
std::vector<ReadSum> sums_to_compare(const std::vector<ReadSum>& all, const std::vector<ReadSum>& mine) {
  std::map<std::uint32_t, std::uint64_t> beginnings;
  for (const auto& sum : all) {
    const auto place = beginnings.try_emplace(sum.storage, sum.begin).first;
    place->second = std::min(place->second, sum.begin);
  }
  std::set<std::uint32_t> storages;
  for (const auto& sum : mine) {
    if (beginnings.at(sum.storage) == sum.begin) storages.insert(sum.storage);
  }
  std::vector<ReadSum> chosen;
  for (const auto& sum : all) {
    if (storages.contains(sum.storage)) chosen.push_back(sum);
  }
  return chosen;
}

/// Each rank compares what it has read whole; the rest, only all together have.
void verify(ProcessGroup& world, const Source& source, const std::vector<ReadSum>& sums) {
  std::vector<ReadSum> rest;
  run_agreed(world, [&] { rest = source.verify_sums(sums); });
  const auto all = all_gather_sums(world, rest);
  run_agreed(world, [&] { source.verify_sums(sums_to_compare(all, rest)); });
}

/// Fills what one plan says, on this rank.
class Loader {
 public:
  Loader(const Source& source, const LoadPlan& plan, ModelRuntime& runtime)
      : reader_(source), plan_(plan), runtime_(runtime), engine_(runtime.engine()), quantized_(runtime) {}

  /// \param hash  takes what is read; null: nobody asks
  void read_weights(WeightHash* hash) {
    for (std::size_t n = 0; n < plan_.weights.size(); ++n) {
      const auto i = plan_.params[n];
      if (quantized_.is_quantized(i)) {
        const auto stored = plan_.stored.find(i);
        quantized_.read(i, reader_, plan_.weights[n], stored == plan_.stored.end() ? nullptr : &stored->second, hash);
        continue;
      }
      if (engine_.range(i).num_rows == 0) continue;
      const auto values = rows(i, {plan_.weights[n], 0});
      if (plan_.must_be_finite && !at::isfinite(values).all().item<bool>()) refuse_not_finite(plan_.weights[n]);
      // Parameters that adapters have whole come from their file.
      if (hash != nullptr && !runtime_.decoder().parameters[i].with_adapter())
        hash->add(i, engine_.range(i).first_row * engine_.layout(i).row_elements(), values);
      auto shard = engine_.shard(i, Access::update);
      mine(shard.values(), i).copy_(values);
      shard.finish();
      const auto copy = plan_.copies.find(i);
      if (copy != plan_.copies.end() && !same_bits(values, rows(i, {copy->second, 0})))
        refuse(plan_.weights[n], copy->second);
    }
  }

  void read_state(const Optimizer& optimizer) {
    for (std::size_t i = 0; i < optimizer.num_params(); ++i) {
      auto shard = engine_.shard(i, Access::update);
      read_states_of(optimizer, i);
      shard.finish();
    }
  }

  /// Does the work that needs all ranks. Collective.
  void finish() { quantized_.finish(); }
  const std::vector<ReadSum>& sums() const { return reader_.sums(); }

 private:
  void read_states_of(const Optimizer& optimizer, std::size_t i) {
    const auto& states = optimizer.states(i);
    for (std::size_t s = 0; s < states.size(); ++s) {
      const auto& [key, shape, values, first_row, num_rows, elsewhere, constant] = states[s];
      if (num_rows == 0) continue;
      const auto mine = values.get().narrow(0, 0, num_rows);
      const auto& place = plan_.optimizer.states[i][s];
      if (constant) {
        if (place) require_equal(*place, reader_.rows(*place, shape, first_row, num_rows), mine);
        continue;
      }
      place ? mine.copy_(reader_.rows(*place, shape, first_row, num_rows)) : mine.zero_();
    }
  }
  at::Tensor rows(std::size_t i, const TensorOffset& place) {
    const auto range = engine_.range(i);
    return reader_.rows(place, engine_.layout(i).shape, range.first_row, range.num_rows);
  }
  at::Tensor mine(const at::Tensor& shard, std::size_t i) const {
    return shard.narrow(0, 0, engine_.range(i).num_rows);
  }
  void require_equal(const TensorOffset& place, const at::Tensor& stored, const at::Tensor& expected) const {
    if (same_bits(stored, expected)) return;
    throw FormatError(plan_.path.string() + ": '" + reader_.source().tensors()[place.tensor].name +
                      "' is not the table that this program computes with, so the state cannot be read by it: restart "
                      "from the weights alone (fsdp-ckpt-convert --model-only)");
  }
  [[noreturn]] void refuse_not_finite(std::size_t tensor) const {
    throw FormatError(fmt::format("{}: '{}' has elements that are not finite (fsdp-ckpt-convert --check)",
                                  plan_.path.string(), reader_.source().tensors()[tensor].name));
  }
  [[noreturn]] void refuse(std::size_t tensor, std::size_t copy) const {
    const auto& tensors = reader_.source().tensors();
    throw FormatError(plan_.path.string() + ": '" + tensors[copy].name + "' differs from '" + tensors[tensor].name +
                      "': the model's head is tied to its token embedding, so they must be equal; to keep both, "
                      "set tie_word_embeddings to false in its config.json");
  }

  detail::RowReader reader_;
  const LoadPlan& plan_;
  ModelRuntime& runtime_;
  Engine& engine_;
  detail::QuantizedLoader quantized_;
};

/// \param make_plan  what it throws is every rank's, as what reading throws
/// \param hash  takes this rank's weights; null: nobody asks
LoadPlan load(ModelRuntime& runtime, const Source& source, Optimizer* optimizer,
              const std::function<LoadPlan()>& make_plan, WeightHash* hash = nullptr) {
  const WithoutAutograd guard;
  LoadPlan plan;
  Loader loader(source, plan, runtime);
  run_agreed(runtime.world(), [&] {
    plan = make_plan();
    loader.read_weights(hash);
    if (optimizer != nullptr && plan.optimizer.found) loader.read_state(*optimizer);
  });
  verify(runtime.world(), source, loader.sums());
  loader.finish();
  if (optimizer != nullptr && plan.optimizer.found) optimizer->set_steps(plan.optimizer.steps);
  runtime.engine().sync_parameters();
  return plan;
}

}  // namespace

void require_kind(const Checkpoint& checkpoint, bool adapters_only) {
  if (checkpoint.has_adapters_only() == adapters_only) return;
  throw FormatError(checkpoint.path().string() +
                    (checkpoint.has_adapters_only()
                         ? ": holds adapters alone (--lora-rank of its run), not a model"
                         : ": holds a whole model: make a folder of it (fsdp-ckpt-convert --to hf) and give that as "
                           "--model, to train adapters for it"));
}

OptimizerPlan load_checkpoint(ModelRuntime& runtime, Optimizer* optimizer, const Checkpoint& checkpoint) {
  const auto& config = runtime.decoder().config;
  const auto& table = runtime.decoder().parameters;
  const auto plan = load(runtime, checkpoint.source(), optimizer, [&] {
    require_kind(checkpoint, runtime.has_adapters());
    auto made = runtime.has_adapters() ? plan_adapters(checkpoint, table) : plan_weights(checkpoint, config);
    if (optimizer != nullptr) made.optimizer = plan_optimizer_state(checkpoint, config, table, *optimizer);
    return made;
  });
  return plan.optimizer;
}

void load_weights(ModelRuntime& runtime, const std::filesystem::path& directory, NewRows start) {
  const auto& quantize = runtime.decoder().options.quantize;
  std::shared_ptr<const Source> source;
  run_agreed(runtime.world(), [&] {
    source = open_model_weights(directory);
    if (!quantize.enabled()) source = dequantize(std::move(source));
    const auto rows = runtime.decoder().config.vocab_size;
    std::error_code error;
    const auto config = directory / "config.json";
    if (std::filesystem::is_regular_file(config, error) && read_model_config(config).vocab_size < rows)
      source = grow_vocabulary(std::move(source), rows, start);
    source = with_model_names(std::move(source), runtime.decoder().config);
  });
  WeightHash hash;
  load(
      runtime, *source, nullptr, [&] { return plan_weights(*source, directory, runtime.decoder().config, quantize); },
      runtime.has_adapters() ? &hash : nullptr);
  if (runtime.has_adapters()) runtime.set_base({directory.string(), hash.of_all(*runtime.mesh().shard.ranks)});
}

void load_base(ModelRuntime& runtime, const BaseWeights& base, const std::filesystem::path& checkpoint) {
  load_weights(runtime, base.directory);
  if (runtime.base().hash == base.hash) return;
  throw FormatError(base.directory + ": are not the weights that the adapters in " + checkpoint.string() +
                    " were trained for: name those with --model");
}

std::vector<std::string> load_adapter(ModelRuntime& runtime, const std::filesystem::path& directory) {
  const auto& decoder = runtime.decoder();
  require_base_weights(runtime.world(), directory, runtime.base().directory);
  AdapterPlan adapter;
  run_agreed(runtime.world(), [&] { adapter = plan_adapter(directory, base_modules(decoder.config)); });
  load(runtime, *adapter.source, nullptr, [&] { return plan_adapters(adapter, decoder.parameters); });
  return adapter.remarks;
}

}  // namespace fsdp
