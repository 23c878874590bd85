#include "lib/checkpoints/programs/gguf/gguf_model.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <utility>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/transform/cast.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/rope.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kNoTensor = static_cast<std::size_t>(-1);  // of a tensor that is computed from config.json
constexpr std::uint64_t kElementsAtOnce = 1u << 16;

struct NamePart {
  std::string_view ours, ggml;
};
constexpr std::array<NamePart, 6> kOutside{{{"model.embed_tokens", "token_embd"},
                                            {"model.norm", "output_norm"},
                                            {"lm_head", "output"},
                                            {"transformer.wte", "token_embd"},
                                            {"transformer.wpe", "position_embd"},
                                            {"transformer.ln_f", "output_norm"}}};
/// The parts of a block, after "model.layers.3." or "transformer.h.3.".
constexpr std::array<NamePart, 19> kOfBlock{{{"self_attn.q_proj", "attn_q"},
                                             {"self_attn.k_proj", "attn_k"},
                                             {"self_attn.v_proj", "attn_v"},
                                             {"self_attn.o_proj", "attn_output"},
                                             {"self_attn.q_norm", "attn_q_norm"},
                                             {"self_attn.k_norm", "attn_k_norm"},
                                             {"mlp.gate_proj", "ffn_gate"},
                                             {"mlp.up_proj", "ffn_up"},
                                             {"mlp.down_proj", "ffn_down"},
                                             {"input_layernorm", "attn_norm"},
                                             {"post_attention_layernorm", "ffn_norm"},
                                             {"pre_feedforward_layernorm", "ffn_norm"},
                                             {"post_feedforward_layernorm", "post_ffw_norm"},
                                             {"ln_1", "attn_norm"},
                                             {"attn.c_attn", "attn_qkv"},
                                             {"attn.c_proj", "attn_output"},
                                             {"ln_2", "ffn_norm"},
                                             {"mlp.c_fc", "ffn_up"},
                                             {"mlp.c_proj", "ffn_down"}}};

/// Masks and frequencies, which older programs stored and no model needs.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

/// Writes blocks of 32 elements as a float16 scale and 32 codes. Source: gguf-py, quants.py (Q8_0)
class Q8Blocks {
 public:
  static constexpr std::uint64_t kElements = 32, kBytes = 34;

  /// \return false when an element is not finite or its scale exceeds float16
  bool write(std::span<const float> values, std::span<std::byte> out) const {
    const auto blocks = values.size() / kElements;
    std::vector<float> scales(blocks);
    std::vector<std::uint16_t> halves(blocks);
    for (std::size_t i = 0; i < blocks; ++i) scales[i] = largest(values.subspan(i * kElements).data()) / 127.0f;
    to_half_.convert(std::as_bytes(std::span(scales)), std::as_writable_bytes(std::span(halves)));
    for (std::size_t i = 0; i < blocks; ++i) {
      constexpr unsigned infinity = 0x7c00;
      if (!(halves[i] < infinity)) return false;
      auto* block = out.data() + i * kBytes;
      std::memcpy(block, &halves[i], sizeof(halves[i]));
      const float inverse = scales[i] == 0 ? 0 : 1 / scales[i];
      write_codes(values.subspan(i * kElements).data(), std::isfinite(inverse) ? inverse : 0, block + 2);
    }
    return true;
  }

 private:
  /// NaN when an element is NaN.
  static float largest(const float* values) {
    float most = 0;
    bool has_nan = false;
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const float size = std::fabs(values[i]);
      most = size > most ? size : most;
      has_nan = has_nan || size != size;
    }
    return has_nan ? NAN : most;
  }
  /// Rounds half away from zero.
  static void write_codes(const float* values, float inverse, std::byte* codes) {
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const float scaled = values[i] * inverse, size = std::fabs(scaled);
      const auto whole = static_cast<int>(size);
      const int rounded = whole + (size - static_cast<float>(whole) >= 0.5f ? 1 : 0);
      codes[i] = static_cast<std::byte>(scaled < 0 ? -rounded : rounded);
    }
  }

  FloatConverter to_half_{DType::f32, DType::f16};
};

class GgufModelSource final : public DecoratedSource {
 public:
  GgufModelSource(std::shared_ptr<const Source> model, const ModelConfig& config, GgufFileType type)
      : DecoratedSource(std::move(model)), config_(config), type_(type), architecture_(gguf_architecture(config)) {
    for (const auto& tensor : inner_->tensors())
      if (is_float(tensor.dtype)) to_float_.try_emplace(tensor.dtype, tensor.dtype, DType::f32);
    if (architecture_ == "llama" && config.rope_scaling.find("llama3") != std::string::npos) add_rope_factors();
    add_parameters();
    if (auto remark = gguf_rope_remark(config); !remark.empty()) info_.remarks.push_back(std::move(remark));
    const auto window = config.traits.window;
    const bool slides = std::ranges::find(config.traits.sliding, true) != config.traits.sliding.end();
    if (architecture_ != "gemma2" && architecture_ != "gemma3" && slides && window < config.block_size)
      info_.remarks.push_back(fmt::format(
          "llama.cpp's {} attends to all positions: after {} tokens its answers differ from this model's, whose layers "
          "have a window",
          architecture_, window));
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    check_read(tensors_[tensor], first, count, out.size());
    if (count == 0) return std::nullopt;
    if (inner_tensor_[tensor] == kNoTensor) {
      const auto bytes = std::as_bytes(std::span(rope_factors_)).subspan(first * sizeof(float), out.size());
      std::memcpy(out.data(), bytes.data(), bytes.size());
      return std::nullopt;
    }
    if (tensors_[tensor].other) {
      read_blocks(tensor, first, out, sums);
      return std::nullopt;
    }
    const auto& from = inner_->tensors()[inner_tensor_[tensor]];
    const auto to = tensors_[tensor].dtype;
    if (!changes_[tensor].adds_one && from.dtype == to) return read_rows(tensor, first, count, out, sums);
    const auto size = dtype_size_bytes(to),
               step = inner_->prefers_whole(inner_tensor_[tensor]) ? count : kElementsAtOnce;
    const FloatConverter converter(DType::f32, to);
    for (std::uint64_t done = 0; done < count; done += step) {
      const auto values = floats(tensor, first + done, std::min(step, count - done), sums);
      converter.convert(std::as_bytes(std::span(values)), out.subspan(done * size, values.size() * size), *inner_,
                        inner_tensor_[tensor]);
    }
    return std::nullopt;
  }

  bool prefers_whole(std::size_t tensor) const override {
    return inner_tensor_[tensor] != kNoTensor && DecoratedSource::prefers_whole(tensor);
  }

 private:
  struct Change {
    std::int64_t heads = 0;  ///< rows are permuted within each of these heads; 0: they are not
    bool adds_one = false;   ///< the weight of an RMSNorm that multiplies by 1 + weight
  };

  void add_rope_factors() {
    rope_factors_ = gguf_rope_factors(config_);
    const auto size = std::ssize(rope_factors_);
    add(kNoTensor, {.name = "rope_freqs.weight", .path = {}, .shape = {size}}, {});
  }

  void add(std::size_t inner, SourceTensor tensor, const Change& change) {
    tensor.path = {tensor.name};
    tensor.stored_bytes = tensor.size_bytes();
    add_tensor(inner, std::move(tensor));
    changes_.push_back(change);
  }

  /// The tensors of the model by the names of the parameter table.
  std::map<std::string, std::size_t> numbers_by_name(const std::map<std::string, const ParameterSpec*>& table) const {
    const auto tied = tied_names(config_);
    const auto is_known = [&](const std::string& name) {
      return table.contains(name) || (!tied.empty() && name == tied.front().first);
    };
    std::map<std::string, std::size_t> numbers;
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto name = inner_->tensors()[i].name;
      if (is_buffer(name)) continue;
      if (!is_known(name) && is_known("model." + name)) name = "model." + name;  // a bare LlamaModel
      if (!is_known(name))
        throw RequestError(fmt::format("\"{}\" has no place in the {} of config.json", name, facts_of(config_).title),
                           Remedy::exclude_name);
      if (!numbers.emplace(name, i).second) throw RequestError("\"" + name + "\" is there twice");
    }
    if (!tied.empty()) drop_tied(tied.front(), numbers);
    return numbers;
  }

  /// Leaves out the head of a tied model, or makes the head the embedding when there is no other.
  void drop_tied(const std::pair<std::string, std::string>& names, std::map<std::string, std::size_t>& numbers) const {
    const auto head = numbers.find(names.first), embedding = numbers.find(names.second);
    if (head == numbers.end()) return;
    if (embedding == numbers.end()) {
      numbers.emplace(names.second, head->second);
    } else if (!detail::are_equal(*inner_, head->second, embedding->second)) {
      throw RequestError(fmt::format("config.json ties \"{}\" to \"{}\", but they differ", names.first, names.second),
                         Remedy::exclude_one);
    }
    numbers.erase(names.first);
  }

  void add_parameters() {
    const auto parameters = parameter_table(config_);
    std::map<std::string, const ParameterSpec*> table;
    for (const auto& spec : parameters) table.emplace(spec.name, &spec);
    const auto numbers = numbers_by_name(table);
    for (const auto& [name, spec] : table) {
      const auto found = numbers.find(name);
      if (found == numbers.end())
        throw FormatError(fmt::format("{}: tensor \"{}\" is missing, which the {} of config.json has",
                                      info_.directory.string(), name, facts_of(config_).title));
      add_parameter(*spec, found->second);
    }
  }

  void add_parameter(const ParameterSpec& spec, std::size_t inner) {
    auto tensor = inner_->tensors()[inner];
    if (!is_float(tensor.dtype))
      throw RequestError(fmt::format("tensor \"{}\" is of type {}, and GGUF files are made of numbers", tensor.name,
                                     torch_name(tensor.dtype)));
    if (tensor.shape != spec.shape)
      throw FormatError(fmt::format("{}: tensor \"{}\" has another shape than config.json gives it",
                                    info_.directory.string(), tensor.name));
    Change change;
    change.adds_one = config_.traits.offset_norms && spec.name.ends_with("norm.weight");
    if (architecture_ == "llama" && spec.name.find(".q_proj.") != std::string::npos) change.heads = config_.num_heads;
    if (architecture_ == "llama" && spec.name.find(".k_proj.") != std::string::npos) change.heads = config_.kv_heads();
    tensor.name = gguf_name(spec, config_.traits);
    set_type(tensor);
    add(inner, std::move(tensor), change);
  }

  void set_type(SourceTensor& tensor) const {
    const bool is_vector = tensor.shape.size() < 2 || tensor.name == "position_embd.weight";
    const auto row = tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(tensor.shape.back());
    if (is_vector || type_ == GgufFileType::f32) {
      tensor.dtype = DType::f32;
    } else if (type_ == GgufFileType::bf16) {
      tensor.dtype = DType::bf16;
    } else if (type_ == GgufFileType::f16 || row % Q8Blocks::kElements != 0) {
      tensor.dtype = DType::f16;
    } else {
      const auto blocks = num_elements(tensor.shape) / static_cast<std::int64_t>(Q8Blocks::kElements);
      tensor.dtype = DType::u8;
      tensor.other = OtherType{"Q8_0", tensor.shape};
      tensor.shape = {blocks * static_cast<std::int64_t>(Q8Blocks::kBytes)};
    }
  }

  /// Reads elements in the type in which they are stored, rows in llama.cpp's order: (0, 1), (2, 3), ... of a head are
  /// the pairs that it rotates, which are its two halves in transformers.
  std::optional<std::uint32_t> read_rows(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                         std::span<std::byte> out, std::vector<ReadSum>* sums) const {
    const auto inner = inner_tensor_[tensor];
    if (changes_[tensor].heads == 0) return inner_->read(inner, first, count, out, sums);
    const auto& from = inner_->tensors()[inner];
    const auto all = element_count(from.shape), item = dtype_size_bytes(from.dtype);
    const auto rows = static_cast<std::uint64_t>(from.shape[0]), columns = all / rows;
    const auto width = rows / static_cast<std::uint64_t>(changes_[tensor].heads);
    std::vector<std::byte> whole(inner_->prefers_whole(inner) || columns == 1 ? all * item : 0);
    if (!whole.empty()) inner_->read(inner, 0, all, whole, count == all ? sums : nullptr);
    for (auto at = first; at < first + count;) {
      const auto row = at / columns, column = at % columns, part = std::min(columns - column, first + count - at);
      const auto in_head = row % width, source = row - in_head + in_head % 2 * (width / 2) + in_head / 2;
      const auto place = out.subspan((at - first) * item, part * item);
      if (whole.empty()) {
        inner_->read(inner, source * columns + column, part, place, sums);
      } else {
        std::memcpy(place.data(), whole.data() + (source * columns + column) * item, place.size());
      }
      at += part;
    }
    return std::nullopt;
  }

  std::vector<float> floats(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                            std::vector<ReadSum>* sums) const {
    const auto dtype = inner_->tensors()[inner_tensor_[tensor]].dtype;
    std::vector<float> values(count);
    const auto out = std::as_writable_bytes(std::span(values));
    if (dtype == DType::f32) {
      read_rows(tensor, first, count, out, sums);
    } else {
      std::vector<std::byte> stored(count * dtype_size_bytes(dtype));
      read_rows(tensor, first, count, stored, sums);
      to_float_.at(dtype).convert(stored, out, *inner_, inner_tensor_[tensor]);
    }
    if (changes_[tensor].adds_one)
      for (auto& value : values) value += 1;
    return values;
  }

  void read_blocks(std::size_t tensor, std::uint64_t first, std::span<std::byte> out,
                   std::vector<ReadSum>* sums) const {
    const auto end = first + out.size(), last_block = (end + Q8Blocks::kBytes - 1) / Q8Blocks::kBytes;
    const auto step = inner_->prefers_whole(inner_tensor_[tensor]) ? last_block : kElementsAtOnce / Q8Blocks::kElements;
    std::vector<std::byte> bytes;
    for (auto block = first / Q8Blocks::kBytes; block < last_block; block += step) {
      const auto count = std::min(step, last_block - block);
      const auto values = floats(tensor, block * Q8Blocks::kElements, count * Q8Blocks::kElements, sums);
      bytes.resize(count * Q8Blocks::kBytes);
      if (!q8_.write(values, bytes))
        throw FormatError(fmt::format("{}: '{}' has elements that are not finite, or too large for q8_0",
                                      info_.directory.string(), inner_->tensors()[inner_tensor_[tensor]].name),
                          Remedy::check);
      const auto begin = block * Q8Blocks::kBytes, from = std::max(first, begin),
                 to = std::min(end, begin + bytes.size());
      std::memcpy(out.data() + (from - first), bytes.data() + (from - begin), to - from);
    }
  }

  ModelConfig config_;
  GgufFileType type_;
  std::string architecture_;
  std::map<DType, FloatConverter> to_float_;  ///< by type of the model's tensors
  std::vector<Change> changes_;               ///< by tensor number
  std::vector<float> rope_factors_;
  Q8Blocks q8_;
};

}  // namespace

std::string gguf_name(const ParameterSpec& spec, const DecoderTraits& traits) {
  const auto dot = spec.name.rfind('.');
  std::string_view part = std::string_view(spec.name).substr(0, dot);
  const auto suffix = spec.name.substr(dot);
  const auto find = [&](std::span<const NamePart> parts) {
    return std::string(std::ranges::find(parts, part, &NamePart::ours)->ggml);
  };
  if (spec.block < 0) return find(kOutside) + suffix;
  const auto number = std::to_string(spec.block);
  part.remove_prefix(part.find("." + number + ".") + number.size() + 2);
  const bool is_post_norm = traits.post_norms && part == "post_attention_layernorm";
  return "blk." + number + "." + (is_post_norm ? "post_attention_norm" : find(kOfBlock)) + suffix;
}

std::vector<float> gguf_rope_factors(const ModelConfig& config) {
  auto plain = config;
  plain.rope_scaling.clear();
  rope_frequencies(config);  // throws when a number is missing
  const auto scaling = parse_json(config.rope_scaling, "rope_scaling");
  const auto number = [&](const char* name) { return scaling.at(name).get<float>(); };
  const float factor = number("factor"), low = number("low_freq_factor"), high = number("high_freq_factor"),
              trained_length = number("original_max_position_embeddings");
  std::vector<float> factors;
  for (const auto frequency : rope_frequencies(plain)) {
    const float wavelength = 1 / frequency * (2 * std::numbers::pi_v<float>);
    const float smooth = (1 / wavelength * trained_length - low) / (high - low);
    factors.push_back(wavelength < trained_length / high  ? 1
                      : wavelength > trained_length / low ? factor
                                                          : 1 / ((1 - smooth) / factor + smooth));
  }
  return factors;
}

GgufFileType gguf_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return GgufFileType::f32;
    case DType::f16:
      return GgufFileType::f16;
    case DType::bf16:
      return GgufFileType::bf16;
    default:
      throw RequestError(std::string(torch_name(dtype)) +
                         ": a GGUF file is written in float32, float16, bf16 or q8_0; llama.cpp's llama-quantize makes "
                         "its other types of it");
  }
}

GgufFileType gguf_type_of(const Source& model) {
  std::map<DType, std::uint64_t> bytes;
  for (const auto& tensor : model.tensors())
    if (is_float(tensor.dtype)) bytes[tensor.dtype] += tensor.size_bytes();
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& one) { return one.second; });
  return most == bytes.end() ? GgufFileType::f32 : gguf_type_of(most->first);
}

std::shared_ptr<const Source> gguf_model(std::shared_ptr<const Source> model, const ModelConfig& config,
                                         GgufFileType type) {
  refuse_other_quantization(*model);
  if (const auto stored = find_stored_nf4(*model); !stored.empty())
    throw RequestError(fmt::format("{}: '{}' is in 4 bits, which llama.cpp does not read",
                                   model->info().directory.string(), stored.begin()->first),
                       Remedy::dequantize);
  if (!facts_of(config).conv1d_type.empty() && conv1d_layout(*model).value_or(false))
    model = gpt2_as_mingpt(model, model->info().directory);
  return std::make_shared<GgufModelSource>(std::move(model), config, type);
}

}  // namespace fsdp
