#include "lib/training/checkpoints/load.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "lib/base/error.hpp"
#include "lib/compute/tensor/scalar_type.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/transform/adapter_plan.hpp"
#include "lib/files/transform/model_source.hpp"
#include "lib/files/transform/quantize.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/checkpoints/load_quantized.hpp"
#include "lib/training/checkpoints/row_reader.hpp"
#include "lib/training/checkpoints/weight_hash.hpp"

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
      : reader_(source), plan_(plan), engine_(runtime.engine()), quantized_(runtime) {}

  /// \param hash  takes what is read; null: nobody asks
  void read_weights(WeightHash* hash) {
    for (std::size_t n = 0; n < plan_.weights.size(); ++n) {
      const auto i = plan_.first + n;
      if (quantized_.is_quantized(i)) {
        const auto stored = plan_.stored.find(i);
        quantized_.read(i, reader_, plan_.weights[n], stored == plan_.stored.end() ? nullptr : &stored->second, hash);
        continue;
      }
      if (engine_.range(i).num_rows == 0) continue;
      const auto values = rows(i, {plan_.weights[n], 0});
      if (plan_.must_be_finite && !at::isfinite(values).all().item<bool>()) refuse_not_finite(plan_.weights[n]);
      if (hash != nullptr) hash->add(i, engine_.range(i).first_row * engine_.layout(i).row_elements(), values);
      engine_.with_rows(i, Access::update, [&] { mine(engine_.master_weight(i), i).copy_(values); });
      const auto copy = plan_.copies.find(i);
      if (copy != plan_.copies.end() && !same_bits(values, rows(i, {copy->second, 0}))) refuse(i, copy->second);
    }
  }

  void read_state(const Optimizer& optimizer) {
    for (std::size_t i = 0; i < optimizer.num_params(); ++i) {
      engine_.with_rows(i, Access::update, [&] { read_states_of(optimizer, i); });
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
  at::Tensor rows(std::size_t i, const TensorPlace& place) {
    const auto range = engine_.range(i);
    return reader_.rows(place, engine_.layout(i).shape, range.first_row, range.num_rows);
  }
  at::Tensor mine(const at::Tensor& shard, std::size_t i) const {
    return shard.narrow(0, 0, engine_.range(i).num_rows);
  }
  void require_equal(const TensorPlace& place, const at::Tensor& stored, const at::Tensor& expected) const {
    if (same_bits(stored, expected)) return;
    throw FormatError(plan_.path.string() + ": '" + reader_.source().tensors()[place.tensor].name +
                      "' is not the table that this program computes with, so the state cannot be read by it: restart "
                      "from the weights alone (fsdp-ckpt-convert --model-only)");
  }
  [[noreturn]] void refuse_not_finite(std::size_t tensor) const {
    throw FormatError(fmt::format("{}: '{}' has elements that are not finite (fsdp-ckpt-convert --check)",
                                  plan_.path.string(), reader_.source().tensors()[tensor].name));
  }
  [[noreturn]] void refuse(std::size_t i, std::size_t copy) const {
    const auto& tensors = reader_.source().tensors();
    throw FormatError(plan_.path.string() + ": '" + tensors[copy].name + "' differs from '" +
                      tensors[plan_.weights[i - plan_.first]].name +
                      "': the model's head is tied to its token embedding, so they must be equal; to keep both, "
                      "set tie_word_embeddings to false in its config.json");
  }

  detail::RowReader reader_;
  const LoadPlan& plan_;
  Engine& engine_;
  detail::QuantizedLoader quantized_;
};

/// \param make_plan  what it throws is every rank's, as what reading throws
/// \param hash  takes this rank's weights; null: nobody asks
LoadPlan load(ModelRuntime& runtime, const Source& source, Optimizer* optimizer,
              const std::function<LoadPlan()>& make_plan, WeightHash* hash = nullptr) {
  const at::NoGradGuard no_grad;
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

namespace {

[[noreturn]] void refuse_kind(const Checkpoint& checkpoint) {
  throw FormatError(checkpoint.path().string() +
                    (checkpoint.has_adapters_only()
                         ? ": holds adapters alone (--lora-rank of its run), not a model"
                         : ": holds a whole model: make a folder of it (fsdp-ckpt-convert --to hf) and give that as "
                           "--model, to train adapters for it"));
}

}  // namespace

OptimizerPlan load_checkpoint(ModelRuntime& runtime, Optimizer* optimizer, const Checkpoint& checkpoint) {
  const auto& config = runtime.decoder().config;
  const auto& table = runtime.decoder().parameters;
  const auto plan = load(runtime, checkpoint.source(), optimizer, [&] {
    if (checkpoint.has_adapters_only() != runtime.has_adapters()) refuse_kind(checkpoint);
    auto made = runtime.has_adapters() ? plan_adapters(checkpoint, table) : plan_weights(checkpoint, config);
    if (optimizer != nullptr) made.optimizer = plan_optimizer_state(checkpoint, config, table, *optimizer);
    return made;
  });
  return plan.optimizer;
}

void load_weights(ModelRuntime& runtime, const std::filesystem::path& directory) {
  const auto& quantize = runtime.decoder().options.quantize;
  std::shared_ptr<const Source> source;
  run_agreed(runtime.world(), [&] {
    source = open_model_source(directory);
    if (!quantize.enabled()) source = dequantize(std::move(source));
  });
  WeightHash hash;
  load(
      runtime, *source, nullptr, [&] { return plan_weights(*source, directory, runtime.decoder().config, quantize); },
      runtime.has_adapters() ? &hash : nullptr);
  if (runtime.has_adapters()) runtime.set_base({directory.string(), hash.of_all(*runtime.mesh().shard)});
}

void load_base(ModelRuntime& runtime, const BaseWeights& base, const std::filesystem::path& checkpoint) {
  load_weights(runtime, base.directory);
  if (runtime.base().hash == base.hash) return;
  throw FormatError(base.directory + ": are not the weights that the adapters in " + checkpoint.string() +
                    " were trained for: name those with --model");
}

std::vector<std::string> load_adapter(ModelRuntime& runtime, const std::filesystem::path& directory) {
  const auto& decoder = runtime.decoder();
  AdapterPlan adapter;
  run_agreed(runtime.world(), [&] { adapter = plan_adapter(directory, base_modules(decoder.config)); });
  load(runtime, *adapter.source, nullptr, [&] { return plan_adapters(adapter, decoder.parameters); });
  return adapter.remarks;
}

}  // namespace fsdp
