#include "lib/training/state/load/quantized_loader.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/compute/ops/nf4.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp::detail {
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
                          "' has elements that are not finite, so it cannot be kept in 4 bits",
                      Remedy::check);
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
