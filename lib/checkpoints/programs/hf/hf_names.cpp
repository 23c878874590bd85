// Renames the tensors of a model between our names and those of others, and changes the layout where it differs.

#include "lib/checkpoints/programs/hf/hf_names.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {
namespace {

/// How the elements of a tensor are laid out on the other side.
enum class NameChange {
  none,
  transposed,         ///< Conv1D of GPT-2 stores [in, out] where torch.nn.Linear stores [out, in]
  pairs_to_halves_q,  ///< rows of each query head: (0, 1), (2, 3), ... become the two halves of the head
  pairs_to_halves_k,  ///< as above, for key heads
  halves_to_pairs_q,
  halves_to_pairs_k,
  dropped,  ///< a buffer that the other side computes and does not store
};

struct MappedName {
  std::string name;
  NameChange change = NameChange::none;
};

/// '#' stands for the number of a layer.
struct NameRow {
  std::string_view from, to;
  NameChange change = NameChange::none;
};

// --- minGPT and GPT2LMHeadModel: the same names ----------------------------------------------------------------------
constexpr std::array<NameRow, 18> kGpt2{{
    {"transformer.wte.weight", "transformer.wte.weight"},
    {"transformer.wpe.weight", "transformer.wpe.weight"},
    {"transformer.h.#.ln_1.weight", "transformer.h.#.ln_1.weight"},
    {"transformer.h.#.ln_1.bias", "transformer.h.#.ln_1.bias"},
    {"transformer.h.#.attn.c_attn.weight", "transformer.h.#.attn.c_attn.weight", NameChange::transposed},
    {"transformer.h.#.attn.c_attn.bias", "transformer.h.#.attn.c_attn.bias"},
    {"transformer.h.#.attn.c_proj.weight", "transformer.h.#.attn.c_proj.weight", NameChange::transposed},
    {"transformer.h.#.attn.c_proj.bias", "transformer.h.#.attn.c_proj.bias"},
    {"transformer.h.#.ln_2.weight", "transformer.h.#.ln_2.weight"},
    {"transformer.h.#.ln_2.bias", "transformer.h.#.ln_2.bias"},
    {"transformer.h.#.mlp.c_fc.weight", "transformer.h.#.mlp.c_fc.weight", NameChange::transposed},
    {"transformer.h.#.mlp.c_fc.bias", "transformer.h.#.mlp.c_fc.bias"},
    {"transformer.h.#.mlp.c_proj.weight", "transformer.h.#.mlp.c_proj.weight", NameChange::transposed},
    {"transformer.h.#.mlp.c_proj.bias", "transformer.h.#.mlp.c_proj.bias"},
    {"transformer.ln_f.weight", "transformer.ln_f.weight"},
    {"transformer.ln_f.bias", "transformer.ln_f.bias"},
    {"lm_head.weight", "lm_head.weight"},
    {"score.weight", "score.weight"},
}};
/// Causal masks: minGPT stores one, too (attn.bias); older versions of transformers' GPT-2 also store a fill value.
constexpr std::array<NameRow, 2> kGpt2Buffers{{
    {"transformer.h.#.attn.bias", "", NameChange::dropped},
    {"transformer.h.#.attn.masked_bias", "", NameChange::dropped},
}};

// --- Llama -----------------------------------------------------------------------------------------------------------
constexpr std::array<NameRow, 20> kLlama{{
    {"model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"model.layers.#.self_attn.q_proj.weight", "model.layers.#.self_attn.q_proj.weight"},
    {"model.layers.#.self_attn.q_proj.bias", "model.layers.#.self_attn.q_proj.bias"},
    {"model.layers.#.self_attn.k_proj.weight", "model.layers.#.self_attn.k_proj.weight"},
    {"model.layers.#.self_attn.k_proj.bias", "model.layers.#.self_attn.k_proj.bias"},
    {"model.layers.#.self_attn.v_proj.weight", "model.layers.#.self_attn.v_proj.weight"},
    {"model.layers.#.self_attn.v_proj.bias", "model.layers.#.self_attn.v_proj.bias"},
    {"model.layers.#.self_attn.o_proj.weight", "model.layers.#.self_attn.o_proj.weight"},
    {"model.layers.#.self_attn.o_proj.bias", "model.layers.#.self_attn.o_proj.bias"},
    {"model.layers.#.mlp.gate_proj.weight", "model.layers.#.mlp.gate_proj.weight"},
    {"model.layers.#.mlp.gate_proj.bias", "model.layers.#.mlp.gate_proj.bias"},
    {"model.layers.#.mlp.up_proj.weight", "model.layers.#.mlp.up_proj.weight"},
    {"model.layers.#.mlp.up_proj.bias", "model.layers.#.mlp.up_proj.bias"},
    {"model.layers.#.mlp.down_proj.weight", "model.layers.#.mlp.down_proj.weight"},
    {"model.layers.#.mlp.down_proj.bias", "model.layers.#.mlp.down_proj.bias"},
    {"model.layers.#.input_layernorm.weight", "model.layers.#.input_layernorm.weight"},
    {"model.layers.#.post_attention_layernorm.weight", "model.layers.#.post_attention_layernorm.weight"},
    {"model.norm.weight", "model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
    {"score.weight", "score.weight"},
}};
constexpr std::array<NameRow, 2> kLlamaBuffers{{
    {"model.layers.#.self_attn.rotary_emb.inv_freq", "", NameChange::dropped},
    {"model.rotary_emb.inv_freq", "", NameChange::dropped},
}};
/// The names in consolidated.*.pth of Meta.
constexpr std::array<NameRow, 13> kMeta{{
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"layers.#.attention.wq.weight", "model.layers.#.self_attn.q_proj.weight", NameChange::pairs_to_halves_q},
    {"layers.#.attention.wk.weight", "model.layers.#.self_attn.k_proj.weight", NameChange::pairs_to_halves_k},
    {"layers.#.attention.wv.weight", "model.layers.#.self_attn.v_proj.weight"},
    {"layers.#.attention.wo.weight", "model.layers.#.self_attn.o_proj.weight"},
    {"layers.#.feed_forward.w1.weight", "model.layers.#.mlp.gate_proj.weight"},
    {"layers.#.feed_forward.w3.weight", "model.layers.#.mlp.up_proj.weight"},
    {"layers.#.feed_forward.w2.weight", "model.layers.#.mlp.down_proj.weight"},
    {"layers.#.attention_norm.weight", "model.layers.#.input_layernorm.weight"},
    {"layers.#.ffn_norm.weight", "model.layers.#.post_attention_layernorm.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"rope.freqs", "", NameChange::dropped},
}};

/// The digits that '#' stands for, empty when the pattern has no '#'; nothing when `name` does not match.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  const auto mark = pattern.find('#');
  if (mark == std::string_view::npos) return pattern == name ? std::optional<std::string_view>("") : std::nullopt;
  const auto before = pattern.substr(0, mark), after = pattern.substr(mark + 1);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) {
    return std::nullopt;
  }
  const auto digits = name.substr(before.size(), name.size() - before.size() - after.size());
  return digits.find_first_not_of("0123456789") == std::string_view::npos ? std::optional(digits) : std::nullopt;
}

std::string fill(std::string_view pattern, std::string_view digits) {
  std::string name(pattern);
  const auto mark = name.find('#');
  return mark == std::string::npos ? name : name.replace(mark, 1, digits);
}

std::optional<MappedName> look_up(std::span<const NameRow> rows, std::string_view name) {
  for (const auto& row : rows) {
    if (const auto digits = match(row.from, name)) return MappedName{fill(row.to, *digits), row.change};
  }
  return std::nullopt;
}

std::optional<MappedName> look_up_back(std::span<const NameRow> rows, std::string_view name) {
  for (const auto& row : rows) {
    if (row.change == NameChange::dropped) continue;
    const auto digits = match(row.to, name);
    if (!digits) continue;
    const auto change = row.change == NameChange::pairs_to_halves_q   ? NameChange::halves_to_pairs_q
                        : row.change == NameChange::pairs_to_halves_k ? NameChange::halves_to_pairs_k
                                                                      : row.change;
    return MappedName{fill(row.from, *digits), change};
  }
  return std::nullopt;
}

std::optional<MappedName> llama_name(std::string_view name) {
  auto found = look_up(kLlama, name);
  return found ? found : look_up(kLlamaBuffers, name);
}

constexpr std::uint64_t kBufferBytes = 8u << 20;

/// The name and change on the other side; nothing when the map does not know the name.
std::optional<MappedName> mapped_name(NameMap map, std::string_view name) {
  std::optional<MappedName> found;
  switch (map) {
    case NameMap::none:
      return MappedName{std::string(name)};
    case NameMap::mingpt_to_gpt2:
    case NameMap::gpt2_to_mingpt:
      found = look_up(kGpt2, name);
      if (!found) found = look_up(kGpt2Buffers, name);
      // The files of openai-community/gpt2 hold a bare GPT2Model, without the prefix.
      if (!found && map == NameMap::gpt2_to_mingpt && !name.starts_with("transformer.")) {
        found = mapped_name(map, "transformer." + std::string(name));
      }
      return found;
    case NameMap::llama_to_hf:
      found = look_up(kMeta, name);
      [[fallthrough]];
    case NameMap::hf_to_llama:
      if (!found) found = llama_name(name);
      if (!found && !name.starts_with("model.")) found = llama_name("model." + std::string(name));
      return found;
    case NameMap::hf_to_meta:
      found = look_up_back(kMeta, name);
      if (!found) found = look_up(kLlamaBuffers, name);
      return found;
  }
  return std::nullopt;
}

bool reorders_heads(NameChange change) { return change != NameChange::none && change != NameChange::transposed; }

bool is_queries(NameChange change) {
  return change == NameChange::pairs_to_halves_q || change == NameChange::halves_to_pairs_q;
}

struct MatrixSize {
  std::uint64_t rows, columns;
  std::size_t item;  ///< bytes of an element
};

/// out[c * rows + r] = in[r * columns + c] for rows [first, first + part) of `in`, in tiles that stay in cache.
void scatter_rows(std::span<const std::byte> in, std::uint64_t first, std::uint64_t part, const MatrixSize& size,
                  std::span<std::byte> out) {
  const auto [rows, columns, item] = size;
  constexpr std::uint64_t kTile = 64;
  for (std::uint64_t r0 = 0; r0 < part; r0 += kTile) {
    for (std::uint64_t c0 = 0; c0 < columns; c0 += kTile) {
      for (auto c = c0; c < std::min(c0 + kTile, columns); ++c) {
        for (auto r = r0; r < std::min(r0 + kTile, part); ++r) {
          std::memcpy(out.data() + (c * rows + first + r) * item, in.data() + (r * columns + c) * item, item);
        }
      }
    }
  }
}

class MappedSource final : public DecoratedSource {
 public:
  MappedSource(std::shared_ptr<const Source> source, NameMap map, const ModelConfig* config)
      : DecoratedSource(std::move(source)) {
    if (config != nullptr) {
      config_ = *config;
    } else if (auto json = inner_->model_config(); json.is_object() && json.value("model_type", "") == "llama") {
      config_ = model_config_from_json(json, info_.directory.string());
    }
    const auto model = model_part(*inner_);
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      const auto name = tensor.name.substr(model.contains[i] ? model.prefix.size() : 0);
      auto mapped = model.contains[i] ? mapped_name(map, name) : mapped_state(map, tensor);
      if (!mapped) refuse(tensor.name, model.contains[i]);
      if (mapped->change == NameChange::dropped) continue;
      check_shape(tensor, mapped->change);
      if (mapped->change == NameChange::transposed) std::swap(tensor.shape[0], tensor.shape[1]);
      if (mapped->name != name) {
        const bool nested = tensor.path.size() > 1;
        if (nested) {
          tensor.path = {tensor.path.front(), mapped->name};
        } else {
          tensor.path = {model.prefix + mapped->name};
        }
        tensor.name = model.prefix + mapped->name;
      }
      add_tensor(i, std::move(tensor));
      changes_.push_back(mapped->change);
    }
    add_all_values();
    check_unique_names(*this);
  }

  bool prefers_whole(std::size_t tensor) const override {
    return changes_.at(tensor) == NameChange::transposed || DecoratedSource::prefers_whole(tensor);
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto change = changes_.at(tensor);
    if (change == NameChange::none) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    if (count == 0) return std::nullopt;
    if (first != 0 || count != element_count(tensors_[tensor].shape)) {
      if (change == NameChange::transposed) return read_columns(tensor, first, count, out);
      return read_heads(tensor, first, count, out, nullptr);
    }
    if (change == NameChange::transposed) {
      transpose(tensor, out, sums);
      return std::nullopt;
    }
    return read_heads(tensor, first, count, out, sums);
  }

 private:
  /// Optimizer state has the layout of its parameter: "optim.state.<parameter>.<key>" keeps its name. A number is the
  /// same for any layout. Nothing for any other tensor.
  static std::optional<MappedName> mapped_state(NameMap map, const SourceTensor& tensor) {
    constexpr std::string_view states = "optim.state.";
    if (map != NameMap::gpt2_to_mingpt || tensor.path.size() != 4 || !tensor.name.starts_with(states))
      return std::nullopt;
    const auto* parameter = std::get_if<std::string>(&tensor.path[2]);
    auto mapped = parameter == nullptr ? std::nullopt : mapped_name(map, *parameter);
    if (!mapped || mapped->name != *parameter) return std::nullopt;
    mapped->name = tensor.name;
    if (tensor.shape.size() != 2) mapped->change = NameChange::none;
    return mapped;
  }

  [[noreturn]] void refuse(const std::string& name, bool is_model) const {
    if (is_model) {
      throw RequestError("the name map does not know \"" + name + "\", perhaps of another kind of model",
                         Remedy::exclude_name);
    }
    throw RequestError("\"" + name + "\" is not part of the model, and names are mapped for models only",
                       Remedy::model_only);
  }

  void check_shape(const SourceTensor& tensor, NameChange change) const {
    if (change == NameChange::none) return;
    if (tensor.shape.size() != 2) throw FormatError("tensor \"" + tensor.name + "\" should be a matrix");
    if (!reorders_heads(change)) return;
    if (!config_ || !facts_of(*config_).in_metas_files) {
      throw RequestError(
          "\"" + tensor.name + "\" lies head by head in Meta's files, and nothing says how many heads a Llama has",
          Remedy::model_config);
    }
    if (tensor.shape[0] % heads(change) != 0 || tensor.shape[0] / heads(change) % 2 != 0) {
      throw FormatError("tensor \"" + tensor.name + "\" has " + std::to_string(tensor.shape[0]) +
                        " rows, which are no " + std::to_string(heads(change)) + " heads of even width");
    }
  }

  std::int64_t heads(NameChange change) const { return is_queries(change) ? config_->num_heads : config_->kv_heads(); }

  /// Reads the matrix in its stored layout, a buffer of rows at a time. Passes each buffer on with its first row and
  /// its number of rows.
  template <typename Body>
  void for_row_blocks(std::size_t tensor, std::vector<ReadSum>* sums, const Body& body) const {
    const auto inner = inner_tensor_[tensor];
    const std::uint64_t rows = tensors_[tensor].shape[1];
    const std::uint64_t columns = tensors_[tensor].shape[0];
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    const auto step =
        inner_->prefers_whole(inner) ? rows : std::clamp<std::uint64_t>(kBufferBytes / (columns * item), 1, rows);
    std::vector<std::byte> buffer(step * columns * item);
    for (std::uint64_t row = 0; row < rows; row += step) {
      const auto part = std::min(step, rows - row);
      const auto in = std::span(buffer).first(part * columns * item);
      inner_->read(inner, row * columns, part * columns, in, sums);
      body(std::span<const std::byte>(in), row, part);
    }
  }

  void transpose(std::size_t tensor, std::span<std::byte> out, std::vector<ReadSum>* sums) const {
    const std::uint64_t rows = tensors_[tensor].shape[1];
    const std::uint64_t columns = tensors_[tensor].shape[0];
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    for_row_blocks(tensor, sums, [&](auto in, auto row, auto part) {
      scatter_rows(in, row, part, {rows, columns, item}, out);
    });
  }

  /// Reads a part of a transposed matrix, which needs a pass over everything for each buffer of rows. Callers that can
  /// should read such a matrix whole.
  std::optional<std::uint32_t> read_columns(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                            std::span<std::byte> out) const {
    const std::uint64_t rows = tensors_[tensor].shape[1];
    const std::uint64_t columns = tensors_[tensor].shape[0];
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    for_row_blocks(tensor, nullptr, [&](auto in, auto row, auto part) {
      for (auto c = first / rows; c <= (first + count - 1) / rows; ++c) {
        const auto begin = std::max(first, c * rows + row), end = std::min(first + count, c * rows + row + part);
        for (auto at = begin; at < end; ++at) {
          const auto r = at - c * rows - row;
          std::memcpy(out.data() + (at - first) * item, in.data() + (r * columns + c) * item, item);
        }
      }
    });
    return std::nullopt;
  }

  /// Reads one head at a time, since rows are permuted within a head.
  std::optional<std::uint32_t> read_heads(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>* sums) const {
    const auto change = changes_[tensor];
    const auto inner = inner_tensor_[tensor];
    const auto& shape = tensors_[tensor].shape;
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    const std::uint64_t columns = shape[1];
    const std::uint64_t width = shape[0] / heads(change);
    const auto to_halves = change == NameChange::pairs_to_halves_q || change == NameChange::pairs_to_halves_k;
    const auto head_elements = width * columns;
    std::vector<std::byte> buffer(head_elements * item);
    for (auto head = first / head_elements; head <= (first + count - 1) / head_elements; ++head) {
      inner_->read(inner, head * head_elements, head_elements, buffer, sums);
      for (std::uint64_t row = 0; row < width; ++row) {
        const auto from = to_halves ? row % (width / 2) * 2 + row / (width / 2) : row % 2 * (width / 2) + row / 2;
        const auto place = head * head_elements + row * columns;
        const auto begin = std::max(first, place), end = std::min(first + count, place + columns);
        if (begin >= end) continue;
        std::memcpy(out.data() + (begin - first) * item, buffer.data() + (from * columns + begin - place) * item,
                    (end - begin) * item);
      }
    }
    return std::nullopt;
  }

  std::optional<ModelConfig> config_;
  std::vector<NameChange> changes_;
};

/// The language model of a multimodal Gemma 3, under the names of the model alone.
class TextSource final : public DecoratedSource {
 public:
  explicit TextSource(std::shared_ptr<const Source> source) : DecoratedSource(std::move(source)) {
    std::size_t left_out = 0;
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      const auto name = language_model_name(tensor.name);
      left_out += name.empty() ? 1 : 0;
      if (name.empty()) continue;
      if (name != tensor.name) {
        tensor.name = name;
        tensor.path = {name};
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
    check_unique_names(*this);
    if (left_out > 0)
      info_.remarks.push_back(info_.directory.string() + ": is multimodal: its language model is read, and " +
                              std::to_string(left_out) + " tensors of its part for images are left out");
  }
};

/// model_type in the config.json of a directory; empty when there is none.
std::string model_type_in(const std::filesystem::path& path) {
  constexpr std::uint64_t limit_bytes = 1u << 20;
  std::error_code error;
  const auto config = path / "config.json";
  if (!std::filesystem::is_regular_file(config, error)) return "";
  const auto json = parse_json_or_discard(read_text_file(config, limit_bytes), config.string());
  const auto type = json.is_object() ? json.value("model_type", nlohmann::json()) : nlohmann::json();
  return type.is_string() ? type.get<std::string>() : "";
}

}  // namespace

std::unique_ptr<Source> map_names(std::shared_ptr<const Source> source, NameMap map, const ModelConfig* config) {
  return std::make_unique<MappedSource>(std::move(source), map, config);
}

bool is_gpt2_directory(const std::filesystem::path& path) { return model_type_in(path) == "gpt2"; }

std::string language_model_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kPrefixes{
      {{"language_model.model.", "model."}, {"language_model.", ""}, {"model.language_model.", "model."}}};
  for (const auto& [from, to] : kPrefixes)
    if (name.starts_with(from)) return std::string(to).append(name.substr(from.size()));
  for (const std::string_view prefix : {"", "model."})
    for (const std::string_view part : {"vision_tower.", "multi_modal_projector."})
      if (name.starts_with(std::string(prefix).append(part))) return "";
  return std::string(name);
}

std::shared_ptr<const Source> language_model(std::shared_ptr<const Source> source) {
  if (model_type_in(source->info().directory) != "gemma3") return source;
  return std::make_shared<TextSource>(std::move(source));
}

std::shared_ptr<const Source> as_stored_for(std::shared_ptr<const Source> source, const nlohmann::json& config,
                                            const std::filesystem::path& path) {
  const auto type = config.value("model_type", nlohmann::json());
  if (type == "gemma3") return std::make_shared<TextSource>(std::move(source));
  if (type == "gpt2" && conv1d_layout(*source).value_or(false)) return gpt2_as_mingpt(std::move(source), path);
  return source;
}

bool has_conv1d_matrices(const std::filesystem::path& path) {
  return is_gpt2_directory(path) && !stored_quantization(path);
}

std::optional<bool> conv1d_layout(const Source& source) {
  for (const auto& tensor : source.tensors()) {
    if (!tensor.name.ends_with("attn.c_attn.weight") || tensor.shape.size() != 2) continue;
    if (tensor.shape[1] == 3 * tensor.shape[0]) return true;
    if (tensor.shape[0] == 3 * tensor.shape[1]) return false;
  }
  return std::nullopt;
}

std::unique_ptr<Source> gpt2_as_mingpt(std::shared_ptr<const Source> source, const std::filesystem::path& path) {
  const auto model = model_part(*source);
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    const auto& tensor = source->tensors()[i];
    if (model.contains[i] && !mapped_name(NameMap::gpt2_to_mingpt, tensor.name)) {
      throw FormatError(path.string() + ": tensor '" + tensor.name + "' has no place in the GPT-2 of its config.json");
    }
  }
  const auto is_random = [](const SourceTensor& tensor) { return tensor.name.starts_with("rng."); };
  if (std::ranges::any_of(source->tensors(), is_random)) {
    SelectOptions without;
    without.exclude = {"rng.*"};
    source = select(std::move(source), without);
  }
  return map_names(std::move(source), NameMap::gpt2_to_mingpt, nullptr);
}

}  // namespace fsdp
