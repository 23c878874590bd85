#include "lib/training/step/initialize.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <stdexcept>
#include <string>

#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/parallel.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/models/config/score_head.hpp"

namespace fsdp {
namespace {

/// Elements [first, first + n) of a parameter's normal stream. Elements 2k and 2k + 1 are made of one pair of uniforms.
void fill_normal(float* out, std::int64_t first, std::int64_t n, std::uint64_t key, double std) {
  constexpr std::int64_t pairs_of_a_thread = 8192;
  const auto last = first + n;
  parallel_for((last + 1) / 2 - first / 2, pairs_of_a_thread, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t even = 2 * (first / 2 + b); even < 2 * (first / 2 + e); even += 2) {
      const auto bits = key + static_cast<std::uint64_t>(even);
      const double u1 = (static_cast<double>(splitmix64(bits) >> 11) + 1.0) * 0x1p-53;
      const double u2 = static_cast<double>(splitmix64(bits + 1) >> 11) * 0x1p-53;
      const double radius = std * std::sqrt(-2.0 * std::log(u1));
      const double angle = 2.0 * std::numbers::pi * u2;
      if (even >= first) out[even - first] = static_cast<float>(radius * std::cos(angle));
      if (even + 1 < last) out[even + 1 - first] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

/// Elements [first, first + n) of a parameter's uniform stream over [-bound, bound).
void fill_uniform(float* out, std::int64_t first, std::int64_t n, std::uint64_t key, double bound) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double u = static_cast<double>(splitmix64(key + static_cast<std::uint64_t>(first + i)) >> 11) * 0x1p-53;
    out[i] = static_cast<float>(bound * (2.0 * u - 1.0));
  }
}

/// This rank's rows of the matrix that a DoRA magnitude belongs to: as many, since both are split by rows.
at::Tensor rows_of_matrix(ModelRuntime& runtime, const std::string& magnitude) {
  const auto& table = runtime.decoder().parameters;
  const auto name = magnitude.substr(0, magnitude.rfind('.')) + ".weight";
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].name != name) continue;
    return runtime.engine().master_weight(i).narrow(0, 0, runtime.engine().range(i).num_rows);
  }
  throw std::logic_error("no matrix " + name);
}

/// Lengths of the rows of a matrix of 4 bits. \param p  its block's, in the order of `names`
at::Tensor lengths_of_codes(const ModelRuntime& runtime, const std::map<std::string, std::size_t>& names, LayerParams p,
                            const std::string& module, std::int64_t rows) {
  const auto matrix = module + ".weight";
  const bool nested = runtime.decoder().options.quantize.double_quant;
  const auto part = [&](const char* name) { return p[names.at(matrix + name)]; };
  const auto columns = p[names.at(module + ".lora_A.weight")].size(1);
  const Nf4Matrix codes{
      part(""), part(kAbsmax), nested ? part(kNestedAbsmax) : at::Tensor(), nested ? part(kNestedOffset) : at::Tensor(),
      rows,     columns};
  return runtime.ops().dequantize(codes, runtime.policy().precision.param_dtype).to(at::kFloat).norm(2, {1});
}

/// DoRA's magnitudes beside matrices of 4 bits, of which a row may lie on two ranks: a block is gathered. Collective.
void fill_magnitudes(ModelRuntime& runtime) {
  auto& engine = runtime.engine();
  const auto& decoder = runtime.decoder();
  for (std::size_t l = 0; l < decoder.layers.size(); ++l) {
    const auto& params = decoder.layers[l]->parameters();
    std::map<std::string, std::size_t> names;
    for (std::size_t i = 0; i < params.size(); ++i) names.emplace(element(decoder.parameters, params[i]).name, i);
    const auto layer = engine.gathered(l);
    runtime.synchronize();  // the copies below would wait for the gather without a limit
    for (const int param : params) {
      const auto i = to_index(param);
      const auto& spec = decoder.parameters[i];
      const auto range = engine.range(i);
      if (spec.init != Init::row_norms || range.num_rows == 0) continue;
      const auto module = spec.name.substr(0, spec.name.rfind('.'));
      const auto lengths = lengths_of_codes(runtime, names, layer.params(), module, spec.shape[0]);
      auto shard = engine.shard(i, Access::update);
      shard.values().narrow(0, 0, range.num_rows).copy_(lengths.narrow(0, range.first_row, range.num_rows));
      shard.finish();
    }
  }
}

/// Trained rows of tokens begin as those of the embedding or head, which may lie on other ranks: its layer is gathered.
/// Collective.
void fill_token_rows(ModelRuntime& runtime) {
  auto& engine = runtime.engine();
  const auto& decoder = runtime.decoder();
  for (const auto& [module, ids] : trained_rows(decoder.config, decoder.options.lora)) {
    const bool is_head = module == "lm_head";
    const auto& params = is_head ? decoder.loss->parameters() : decoder.layers.front()->parameters();
    const auto name_of = [&](int param) { return element(decoder.parameters, param).name; };
    const auto place = [&](const std::string& name) {
      return std::find_if(params.begin(), params.end(), [&](int param) { return name_of(param) == name; });
    };
    auto weight = place(module + ".weight");
    for (const auto& [head, embedding] : tied_names(decoder.config))
      if (weight == params.end()) weight = place(embedding);
    const auto rows = static_cast<std::size_t>(*place(module + kTokenRows));
    const auto range = engine.range(rows);
    const auto layer = engine.gathered(is_head ? decoder.layers.size() : 0);
    runtime.synchronize();  // as in fill_magnitudes()
    const auto& whole = element(layer.params(), weight - params.begin());
    auto shard = engine.shard(rows, Access::update);
    for (std::int64_t i = 0; i < range.num_rows; ++i) {
      const auto id = element(ids, range.first_row + i);
      shard.values().select(0, i).copy_(whole.select(0, id));
    }
    shard.finish();
  }
}

at::Tensor first_rows(ModelRuntime& runtime, std::size_t i, std::uint64_t seed) {
  const auto& spec = runtime.decoder().parameters[i];
  const auto range = runtime.engine().range(i);
  const auto& layout = runtime.engine().layout(i);
  if (spec.init == Init::row_norms) return rows_of_matrix(runtime, spec.name).to(at::kFloat).norm(2, {1});
  auto values = at::empty(layout.shape_with_rows(range.num_rows), at::kFloat);
  const auto first = range.first_row * layout.row_elements();
  const auto key = splitmix64(seed) ^ fnv1a(spec.name);
  if (spec.init == Init::normal) {
    fill_normal(values.data_ptr<float>(), first, values.numel(), key, spec.std);
  } else if (spec.init == Init::uniform) {
    fill_uniform(values.data_ptr<float>(), first, values.numel(), key, spec.std);
  } else {
    values.fill_(spec.init == Init::ones ? 1.0 : 0.0);
  }
  return values;
}

/// \param chosen  of a ParameterSpec
template <typename Chosen>
void initialize(ModelRuntime& runtime, std::uint64_t seed, const Chosen& chosen) {
  const WithoutAutograd guard;
  auto& engine = runtime.engine();
  const bool of_codes = runtime.decoder().options.quantize.enabled() && runtime.decoder().options.lora.dora;
  if (of_codes) fill_magnitudes(runtime);
  fill_token_rows(runtime);
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto rows = engine.range(i).num_rows;
    const auto& spec = runtime.decoder().parameters[i];
    if (rows == 0 || !chosen(spec) || spec.init == Init::token_rows || (of_codes && spec.init == Init::row_norms))
      continue;
    auto shard = engine.shard(i, Access::update);
    shard.values().narrow(0, 0, rows).copy_(first_rows(runtime, i, seed));
    shard.finish();
  }
  engine.sync_parameters();
  runtime.synchronize();
  // No step needs blocks of the sizes that were allocated here: cached, they would only fragment the device's memory.
  if (auto* backend = runtime.backend()) backend->release_cached(runtime.device().index());
}

}  // namespace

void initialize_parameters(ModelRuntime& runtime, std::uint64_t seed) {
  initialize(runtime, seed, [](const ParameterSpec&) { return true; });
}

void initialize_added_parameters(ModelRuntime& runtime, std::uint64_t seed) {
  const bool has_new_score = runtime.decoder().config.score_is_new;
  initialize(runtime, seed, [has_new_score](const ParameterSpec& spec) {
    return spec.adapter || (has_new_score && spec.name == kScoreWeight);
  });
}

}  // namespace fsdp
