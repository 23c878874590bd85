#include "lib/checkpoints/model/base_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/checkpoints/model/model_source.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/transform/quantize.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kBuffer_bytes = 8u << 20;

template <typename Word>
std::uint64_t sum_of(std::span<const std::byte> elements, std::uint64_t place) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < elements.size() / sizeof(Word); ++i) {
    Word value;
    std::memcpy(&value, elements.data() + i * sizeof(Word), sizeof(Word));
    sum += splitmix64_output(place + i * kSplitmix64Step + value);
  }
  return sum;
}

/// A tensor whose elements count for the mark as those of a parameter.
struct Counted {
  std::size_t tensor, param;
  bool as_bytes = false;  ///< codes: each byte is an element
};

std::uint64_t mark_of(const Source& source, const Counted& counted) {
  const auto& tensor = source.tensors()[counted.tensor];
  const auto stored_bytes = dtype_size_bytes(tensor.dtype);
  const auto count = element_count(tensor.shape);
  const auto step = source.prefers_whole(counted.tensor) ? count : std::min(count, kBuffer_bytes / stored_bytes);
  std::vector<std::byte> buffer(step * stored_bytes);
  std::uint64_t sum = 0;
  for (std::uint64_t done = 0; done < count; done += step) {
    const auto part = std::span(buffer).first(std::min(step, count - done) * stored_bytes);
    source.read(counted.tensor, done, part.size() / stored_bytes, part, nullptr);
    const auto item = counted.as_bytes ? 1 : stored_bytes;
    sum += mark_of_elements(counted.param, done * stored_bytes / item, part, item);
  }
  return sum;
}

/// The tensors of the base that count, in the order of the parameters of the run's model; nothing where one is missing.
/// \param table  of the model with its adapters, those of the adapters left out
std::optional<std::vector<Counted>> counted_in(const Source& source, const ModelConfig& config,
                                               const std::vector<ParameterSpec>& table, bool in_4_bits) {
  std::map<std::string, std::size_t> tensors, params;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) tensors.emplace(source.tensors()[i].name, i);
  for (std::size_t i = 0; i < table.size(); ++i) params.emplace(table[i].name, i);
  const auto stored = in_4_bits ? find_stored_nf4(source) : std::map<std::string, StoredNf4>();
  std::vector<Counted> counted;
  for (const auto& spec : parameter_table(config)) {
    const auto param = params.at(spec.name);
    if (table[param].with_adapter()) continue;
    if (const auto nf4 = stored.find(spec.name); nf4 != stored.end()) {
      counted.push_back({nf4->second.codes, param, true});
      counted.push_back({nf4->second.absmax, params.at(spec.name + kAbsmax)});
      if (nf4->second.nested_absmax)
        counted.push_back({*nf4->second.nested_absmax, params.at(spec.name + kNestedAbsmax)});
      continue;
    }
    auto tensor = tensors.find(spec.name);
    if (tensor == tensors.end()) tensor = tensors.find(tied_name_of(config, spec.name));
    if (tensor == tensors.end()) return std::nullopt;
    counted.push_back({tensor->second, param});
  }
  return counted;
}

/// This rank's part of the sum over the weights in `base`; nothing where these cannot be of the run's model.
std::optional<std::uint64_t> own_sum(const ProcessGroup& world, const nlohmann::json& run, const std::string& where,
                                     const std::filesystem::path& base) {
  const auto& data = run.at("data");
  auto lora = adapter_config_from_json(data.at("adapter"), where).lora;
  take_vocabulary(data, lora);
  QuantizeConfig quantize;
  if (data.contains("quantize")) quantize = quantization_from_json(data["quantize"], where);
  const auto config = adapted_model(model_config_from_json(run.at("model"), where), lora);
  auto table = quantized_table(config, quantize);
  mark_saved_parameters(table, config, lora);
  std::shared_ptr<const Source> source = open_model_weights(base);
  if (!quantize.enabled()) source = dequantize(std::move(source));
  const auto counted = counted_in(*source, config, table, quantize.enabled());
  if (!counted) return std::nullopt;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < counted->size(); ++i)
    if (static_cast<int>(i % static_cast<std::size_t>(world.size())) == world.rank())
      sum += mark_of(*source, (*counted)[i]);
  return sum;
}

}  // namespace

std::uint64_t mark_of_elements(std::size_t param, std::uint64_t first, std::span<const std::byte> elements,
                               std::size_t item_bytes) {
  const auto place = splitmix64(param) + first * kSplitmix64Step;
  switch (item_bytes) {
    case 1:
      return sum_of<std::uint8_t>(elements, place);
    case 2:
      return sum_of<std::uint16_t>(elements, place);
    case 4:
      return sum_of<std::uint32_t>(elements, place);
    default:
      return sum_of<std::uint64_t>(elements, place);
  }
}

std::string mark_of_sum(std::uint64_t sum) { return fmt::format("{:016x}", sum); }

void require_base_weights(ProcessGroup& world, const std::filesystem::path& adapter,
                          const std::filesystem::path& base) {
  const auto checkpoint = checkpoint_in_run(adapter);
  std::error_code error;
  if (std::filesystem::exists(checkpoint / kAdapterConfig, error)) return;
  const auto data = adapters_of_run(checkpoint);
  if (data.is_null()) return;
  std::optional<std::uint64_t> local_sum;
  run_agreed(world, [&] { local_sum = own_sum(world, run_of_checkpoint(checkpoint), checkpoint.string(), base); });
  std::uint64_t sum = 0;
  const auto part = local_sum.value_or(0);
  for (const auto& bytes : world.gather({reinterpret_cast<const char*>(&part), sizeof(part)}, 0)) {
    std::uint64_t other = 0;
    std::memcpy(&other, bytes.data(), sizeof(other));
    sum += other;
  }
  const auto mark = world.broadcast_text(mark_of_sum(sum), 0);
  if (local_sum && mark == text_of_run(data, "weights_hash")) return;
  const auto name = text_of_run(data, "weights");
  throw FormatError(fmt::format("{}: are not the weights that the adapters in {} were trained for: name those{}",
                                base.string(), adapter.string(), name.empty() ? "" : " (" + name + ")"));
}

}  // namespace fsdp
