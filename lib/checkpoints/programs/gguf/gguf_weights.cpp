#include "lib/checkpoints/programs/gguf/gguf_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/gguf/gguf_blocks.hpp"
#include "lib/checkpoints/programs/gguf/gguf_config.hpp"
#include "lib/checkpoints/programs/gguf/gguf_model.hpp"
#include "lib/checkpoints/transform/cast.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kElementsAtOnce = 1u << 16;  // whole blocks of every type
constexpr const char* kRopeFactors = "rope_freqs.weight";
constexpr float kFactorRounding = 1e-5f;

class GgufWeights final : public DecoratedSource {
 public:
  explicit GgufWeights(std::shared_ptr<const Source> gguf)
      : DecoratedSource(std::move(gguf)), path_(inner_->info().named_file()) {
    auto json = config_of_gguf(*inner_, read_gguf_metadata(path_));
    config_ = model_config_from_json(json, path_.string());
    is_permuted_ = facts_of(config_).gguf == "llama";
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) left_.emplace(inner_->tensors()[i].name, i);
    add_parameters();
    if (const auto factors = left_.find(kRopeFactors); factors != left_.end() && is_permuted_) {
      json["rope_scaling"] = scaling_of(factors->second);
      left_.erase(factors);
    }
    if (!left_.empty())
      throw FormatError(fmt::format("{}: tensor '{}' has no place in the {} that its keys describe", path_.string(),
                                    left_.begin()->first, facts_of(config_).title));
    info_.model_config = json_text(json);
    info_.directory = path_;
    info_.producer = "";
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    check_read(tensors_[tensor], first, count, out.size());
    const auto& change = changes_[tensor];
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    if (change.heads == 0) {
      read_part(tensor, first, out, sums);
      return std::nullopt;
    }
    // Row r of a head is, of the pairs that llama.cpp rotates, in the first half the first of pair r, else the second.
    const auto& shape = tensors_[tensor].shape;
    const auto rows = static_cast<std::uint64_t>(shape[0]), columns = element_count(shape) / rows,
               width = rows / static_cast<std::uint64_t>(change.heads);
    for (auto at = first; at < first + count;) {
      const auto row = at / columns, column = at % columns, part = std::min(columns - column, first + count - at);
      const auto in_head = row % width, pair = in_head % (width / 2),
                 stored = row - in_head + 2 * pair + in_head / (width / 2);
      read_part(tensor, stored * columns + column, out.subspan((at - first) * item, part * item), sums);
      at += part;
    }
    return std::nullopt;
  }

 private:
  struct Change {
    std::int64_t heads = 0;  ///< rows are permuted within each of these heads; 0: they are not
    bool takes_one = false;  ///< the file has 1 + weight
    const GgufType* blocks = nullptr;
  };

  [[noreturn]] void fail(const std::string& tensor, const std::string& problem) const {
    throw FormatError(fmt::format("{}: tensor '{}' {}", path_.string(), tensor, problem));
  }

  void add_parameters() {
    for (const auto& spec : parameter_table(config_)) add_parameter(spec, gguf_name(spec, config_.traits));
    // Files of older converters repeat the embedding of a tied model.
    for (const auto& [alias, original] : tied_names(config_)) {
      if (!left_.contains("output.weight")) continue;
      const auto table = parameter_table(config_);
      auto head = *std::ranges::find(table, original, &ParameterSpec::name);
      head.name = alias;
      add_parameter(head, "output.weight");
    }
  }

  void add_parameter(const ParameterSpec& spec, const std::string& stored) {
    const auto found = left_.find(stored);
    if (found == left_.end()) fail(stored, fmt::format("is missing, which the model has for '{}'", spec.name));
    const auto number = found->second;
    left_.erase(found);
    const auto& from = inner_->tensors()[number];
    const auto& shape = from.other ? from.other->shape : from.shape;
    if (shape != spec.shape)
      fail(stored,
           fmt::format("has shape [{}], its keys give it [{}]", fmt::join(shape, ", "), fmt::join(spec.shape, ", ")));
    Change change;
    change.takes_one = config_.traits.offset_norms && spec.name.ends_with("norm.weight");
    if (is_permuted_ && spec.name.find(".q_proj.") != std::string::npos) change.heads = config_.num_heads;
    if (is_permuted_ && spec.name.find(".k_proj.") != std::string::npos) change.heads = config_.kv_heads();
    if (change.heads != 0 && shape[0] / change.heads % 2 != 0) fail(stored, "has heads of odd width");
    SourceTensor tensor{.name = spec.name, .path = {spec.name}, .dtype = from.dtype, .shape = shape};
    if (from.other) {
      change.blocks = find_gguf_type(from.other->name);
      if (change.blocks == nullptr || !can_dequantize_gguf(*change.blocks))
        fail(stored,
             fmt::format("is of type {}: read are F32, F16, BF16, {}", from.other->name, dequantized_gguf_types()));
    } else if (!is_float(from.dtype)) {
      fail(stored, fmt::format("is of type {}, which no parameter has", torch_name(from.dtype)));
    }
    if (from.other || change.takes_one) tensor.dtype = DType::f32;
    tensor.stored_bytes = from.stored_bytes;
    if (!from.other && tensor.dtype != from.dtype) to_float_.try_emplace(from.dtype, from.dtype, DType::f32);
    add_tensor(number, std::move(tensor));
    changes_.push_back(change);
  }

  /// Reads elements that lie one after another in the file.
  void read_part(std::size_t tensor, std::uint64_t first, std::span<std::byte> out, std::vector<ReadSum>* sums) const {
    const auto inner = inner_tensor_[tensor];
    const auto& change = changes_[tensor];
    const auto stored = inner_->tensors()[inner].dtype;
    const auto count = out.size() / dtype_size_bytes(tensors_[tensor].dtype);
    if (change.blocks == nullptr && stored == tensors_[tensor].dtype) {
      inner_->read(inner, first, count, out, sums);
    } else if (change.blocks != nullptr) {
      read_blocks(inner, *change.blocks, first, out, sums);
    } else {
      std::vector<std::byte> bytes(count * dtype_size_bytes(stored));
      inner_->read(inner, first, count, bytes, sums);
      to_float_.at(stored).convert(bytes, out, *inner_, inner);
    }
    if (!change.takes_one) return;
    for (std::size_t at = 0; at < out.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, out.data() + at, sizeof(value));
      value -= 1;
      std::memcpy(out.data() + at, &value, sizeof(value));
    }
  }

  void read_blocks(std::size_t inner, const GgufType& type, std::uint64_t first, std::span<std::byte> out,
                   std::vector<ReadSum>* sums) const {
    const auto end = first + out.size() / sizeof(float);
    std::vector<std::byte> bytes;
    std::vector<float> values;
    for (auto block = first / type.block_elements; block * type.block_elements < end;) {
      const auto begin = block * type.block_elements;
      const auto blocks = std::min(kElementsAtOnce, end - begin + type.block_elements - 1) / type.block_elements;
      bytes.resize(blocks * type.block_bytes);
      values.resize(blocks * type.block_elements);
      inner_->read(inner, block * type.block_bytes, bytes.size(), bytes, sums);
      dequantize_gguf(type, bytes, values);
      const auto from = std::max(first, begin), to = std::min(end, begin + values.size());
      std::memcpy(out.data() + (from - first) * sizeof(float), values.data() + (from - begin),
                  (to - from) * sizeof(float));
      block += blocks;
    }
  }

  /// The rope_scaling that has these factors. The file has the factors alone: the wavelengths where they begin and end
  /// to grow are looked for as Llama's makers give them, between 1 and 4 turns in a power of two of tokens.
  nlohmann::json scaling_of(std::size_t number) const {
    const auto& tensor = inner_->tensors()[number];
    const std::size_t size = config_.rotary_pairs();
    if (tensor.dtype != DType::f32 || tensor.other || tensor.shape != Shape{static_cast<std::int64_t>(size)})
      fail(kRopeFactors, fmt::format("is not {} numbers of float32", size));
    std::vector<float> factors(size);
    inner_->read(number, 0, size, std::as_writable_bytes(std::span(factors)), nullptr);
    const auto largest = *std::ranges::max_element(factors);
    constexpr int least_power = 4, most_power = 20;
    for (int power = most_power; std::isfinite(largest) && largest >= 1 && power >= least_power; --power) {
      const nlohmann::json scaling{{"rope_type", "llama3"},
                                   {"factor", largest},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 1 << power}};
      auto config = config_;
      config.rope_scaling = json_text(scaling);
      const auto made = gguf_rope_factors(config);
      const auto is_same = [](float a, float b) { return std::fabs(a - b) <= kFactorRounding * b; };
      if (std::ranges::equal(factors, made, is_same)) return scaling;
    }
    fail(kRopeFactors,
         "holds other factors than those of llama3 with low_freq_factor 1, high_freq_factor 4 and a power of two for "
         "original_max_position_embeddings");
  }

  std::filesystem::path path_;
  ModelConfig config_;
  bool is_permuted_ = false;
  std::map<std::string, std::size_t> left_;  ///< tensors of the file without a place yet
  std::map<DType, FloatConverter> to_float_;
  std::vector<Change> changes_;  ///< by tensor number
};

}  // namespace

std::unique_ptr<Source> gguf_as_model(std::shared_ptr<const Source> gguf) {
  return std::make_unique<GgufWeights>(std::move(gguf));
}

bool is_gguf_source(const Source& source) {
  return source.info().format == kGgufMagic && source.info().model_config.empty();
}

}  // namespace fsdp
