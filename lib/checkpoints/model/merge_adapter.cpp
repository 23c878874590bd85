#include "lib/checkpoints/model/merge_adapter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/model/adapter_plan.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/transform/cast.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/models/config/score_head.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kBufferElements = 1u << 20;

constexpr std::string_view kHead = "lm_head", kWeight = ".weight", kBias = ".bias";

/// The parameter of the model that a tensor is, by its name in the model; "" for any other tensor.
std::string parameter_of(const Source& base, const ModelPart& model, std::size_t tensor) {
  return model.contains[tensor] ? base.tensors()[tensor].name.substr(model.prefix.size()) : "";
}

/// The module that a weight or bias belongs to; "" if the name has not this ending.
std::string module_of(const std::string& parameter, std::string_view ending) {
  if (!parameter.ends_with(ending)) return "";
  return parameter.substr(0, parameter.size() - ending.size());
}

/// Whether config.json beside the weights says that head and embedding are one.
bool is_tied(const Source& base) {
  const auto file = base.info().directory / "config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return false;
  const auto config = parse_json_or_discard(read_text_file(file, 1u << 20), file.string());
  return config.is_object() && ties_word_embeddings(config);
}

/// The type of a tensor of the base that is no floating-point type; empty for one that is.
std::string other_type_of(const SourceTensor& tensor) {
  if (tensor.other) return tensor.other->name;
  return is_float(tensor.dtype) ? "" : std::string(torch_name(tensor.dtype));
}

/// The modules of the base. Any floating-point matrix can have an adapter; matrices of blocks have a number in their
/// names. A model without a head has it tied to its embedding.
std::vector<BaseModule> modules_of(const Source& base, const ModelPart& model) {
  std::vector<BaseModule> modules;
  std::string embedding;
  bool has_head = false;
  for (std::size_t i = 0; i < base.tensors().size(); ++i) {
    auto name = module_of(parameter_of(base, model, i), kWeight);
    if (name.empty()) continue;
    const auto& tensor = base.tensors()[i];
    const bool is_in_block = std::any_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (is_token_embedding(name)) embedding = name;
    has_head = has_head || name == kHead;
    modules.push_back({std::move(name), tensor.shape.size() == 2, is_in_block, other_type_of(tensor)});
    if (tensor.shape.size() == 2) modules.back().rows = tensor.shape[0];
  }
  if (embedding.empty()) return modules;
  if (!has_head) {
    const auto of = std::find_if(modules.begin(), modules.end(), [&](const auto& m) { return m.name == embedding; });
    modules.push_back({.name = std::string(kHead), .can_have_adapter = true, .tied_to = embedding, .rows = of->rows});
  } else if (is_tied(base)) {
    std::find_if(modules.begin(), modules.end(), [](const auto& module) { return module.name == kHead; })->tied_to =
        embedding;
  }
  return modules;
}

/// Adds the module of the scores that an adapter has, where the base has none.
std::vector<BaseModule> modules_with_score(std::vector<BaseModule> modules, std::int64_t scores) {
  const auto score = module_of(kScoreWeight, kWeight);
  if (scores > 0 && std::ranges::find(modules, score, &BaseModule::name) == modules.end())
    modules.push_back({.name = score, .rows = scores});
  return modules;
}

class MergedSource final : public DecoratedSource {
 public:
  MergedSource(std::shared_ptr<const Source> base, const std::filesystem::path& directory, std::optional<DType> result)
      : DecoratedSource(std::move(base)),
        plan_(plan_adapter(directory,
                           modules_with_score(modules_of(*inner_, model_part(*inner_)), scores_of_adapter(directory)))),
        base_(inner_),
        adapters_(plan_.source),
        result_(result) {
    const auto model = model_part(*inner_);
    const auto score = plan_.whole.find(kScoreWeight);
    std::optional<std::size_t> embedding;
    std::set<std::string> parameters;
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      const auto parameter = parameter_of(*inner_, model, i);
      if (is_token_embedding(module_of(parameter, kWeight))) embedding = i;
      if (score != plan_.whole.end() && module_of(parameter, kWeight) == kHead) continue;  // the score is the head
      parameters.insert(parameter);
      add(i, parameter, inner_->tensors()[i]);
    }
    if (plan_.unties) untie(model, embedding, parameters);
    if (score != plan_.whole.end() && parameters.insert(kScoreWeight).second) {
      auto tensor = inner_->tensors().at(embedding.value());
      tensor.name = model.prefix + kScoreWeight;
      tensor.path = {tensor.name};
      tensor.shape = adapters_.source().tensors()[score->second].shape;
      add(*embedding, kScoreWeight, std::move(tensor));
    }
    check_all_used(parameters);
    add_all_values();
    info_.remarks.insert(info_.remarks.end(), plan_.remarks.begin(), plan_.remarks.end());
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto found = changes_.find(tensor);
    if (found == changes_.end() || count == 0) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto& change = found->second;
    if (change.is_bias || change.parts == nullptr) {
      auto values = change.whole ? part_values(*change.whole, first, count)
                                 : base_.read(inner_tensor_[tensor], first, count, sums);
      if (change.is_bias) add_bias(*change.parts, first, values);
      write(values, tensor, out);
      return std::nullopt;
    }
    const auto& adapter = *change.parts;
    const auto& shape = tensors_[tensor].shape;
    const std::uint64_t columns = shape[1];
    const auto low_rank = low_rank_of(adapter, columns);
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    // The length of a row needs the whole row.
    const auto begin_row = first / columns, end_row = (first + count - 1) / columns + 1;
    const auto step = inner_->prefers_whole(inner_tensor_[tensor])
                          ? end_row - begin_row
                          : std::max<std::uint64_t>(1, kBufferElements / columns);
    for (auto row = begin_row; row < end_row; row += step) {
      const auto rows = std::min(step, end_row - row);
      auto values = change.whole ? part_values(*change.whole, row * columns, rows * columns)
                                 : base_.read(inner_tensor_[tensor], row * columns, rows * columns, sums);
      add(adapter, low_rank, row, columns, values);
      const auto from = std::max(first, row * columns), to = std::min(first + count, (row + rows) * columns);
      const std::span<const float> wanted(values.data() + (from - row * columns), to - from);
      write(wanted, tensor, out.subspan((from - first) * item, (to - from) * item));
    }
    return std::nullopt;
  }

 private:
  /// Changes of a tensor of the base.
  struct Change {
    const AdapterParts* parts = nullptr;
    std::optional<std::size_t> whole = {};  ///< this tensor of the adapter instead
    bool is_bias = false;                   ///< the scaled bias of `parts` is added
  };

  /// Adds a tensor of the base with what the adapter changes in it.
  void add(std::size_t inner, const std::string& parameter, SourceTensor tensor) {
    Change change;
    const auto whole = plan_.whole.find(parameter);
    const auto of_weight = plan_.parts.find(module_of(parameter, kWeight));
    const auto of_bias = plan_.parts.find(module_of(parameter, kBias));
    const auto table = plan_.tables.find(parameter);
    if (table != plan_.tables.end()) change.whole = table->second;
    if (whole != plan_.whole.end()) change.whole = whole->second;  // the trained copy, not the base's beside an adapter
    const auto module = module_of(parameter, kWeight);
    const bool has_row_per_token = is_token_embedding(module) || module == kHead;
    if (change.whole && plan_.lora.vocabulary > 0 && has_row_per_token && tensor.shape.size() == 2)
      tensor.shape[0] = std::max(tensor.shape[0], plan_.lora.vocabulary);
    if (change.whole) expect(*change.whole, tensor.shape, tensor);
    if (of_weight != plan_.parts.end() && whole == plan_.whole.end()) {
      check(tensor, of_weight->second);
      change.parts = &of_weight->second;
    }
    if (of_bias != plan_.parts.end() && of_bias->second.b_bias) {
      expect(*of_bias->second.b_bias, tensor.shape, tensor);
      change.parts = &of_bias->second;
      change.is_bias = true;
    }
    if (change.whole || change.parts != nullptr) {
      if (result_)
        tensor.dtype = *result_;
      else
        refuse_float8(tensor);
      changes_.emplace(tensors_.size(), change);
    }
    add_tensor(inner, std::move(tensor));
  }

  /// Makes two weights of one that head and embedding share: the head is the adapter's copy, or the embedding as it
  /// was.
  void untie(const ModelPart& model, std::optional<std::size_t> embedding, std::set<std::string>& parameters) {
    info_.unties_head = true;
    const auto name = std::string(kHead) + std::string(kWeight);
    if (!parameters.insert(name).second) return;
    auto tensor = inner_->tensors().at(embedding.value());
    if (tensor.name.find("transformer.wte") != std::string::npos)
      throw FormatError(plan_.file.string() +
                        ": parts the head of a GPT-2 from its embedding, which are one here, so it is not merged");
    tensor.name = model.prefix + name;
    tensor.path = {tensor.name};
    add(*embedding, name, std::move(tensor));
  }

  /// \throws FormatError naming what the adapter has for a parameter that the base lacks
  void check_all_used(const std::set<std::string>& parameters) const {
    for (const auto& [name, tensor] : plan_.whole) {
      if (parameters.contains(name) || (plan_.lora.ensure_weight_tying && name == "lm_head.weight")) continue;
      throw FormatError(fmt::format("{}: \"{}\" is no parameter of the base", plan_.file.string(),
                                    adapters_.source().tensors()[tensor].name));
    }
    for (const auto& [module, parts] : plan_.parts) {
      if (parts.b_bias && !parameters.contains(module + std::string(kBias)))
        throw FormatError(fmt::format("{}: {} has a lora_B.bias, and no bias in the base that it could be added to",
                                      plan_.file.string(), module));
    }
  }

  void write(std::span<const float> values, std::size_t tensor, std::span<std::byte> out) const {
    FloatConverter(DType::f32, tensors_[tensor].dtype).convert(std::as_bytes(values), out, *this, tensor);
  }

  void add_bias(const AdapterParts& adapter, std::uint64_t first, std::vector<float>& values) const {
    const auto bias = part_values(*adapter.b_bias, first, values.size());
    const auto scale = static_cast<float>(adapter.adapter.scale);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += scale * bias[i];
  }

  std::vector<float> whole(std::size_t part) const {
    return part_values(part, 0, element_count(adapters_.source().tensors()[part].shape));
  }

  /// Reads elements [first, first + count) of a part of the adapter. \throws FormatError when an element is not finite
  std::vector<float> part_values(std::size_t part, std::uint64_t first, std::uint64_t count) const {
    auto values = adapters_.read(part, first, count, nullptr);
    if (std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return values;
    throw FormatError(fmt::format("{}: '{}' has elements that are not finite", plan_.file.string(),
                                  adapters_.source().tensors()[part].name),
                      Remedy::check);
  }

  /// Refuses types of one byte: an adapter mostly adds less than half a step of such a type.
  void refuse_float8(const SourceTensor& tensor) const {
    if (dtype_size_bytes(tensor.dtype) > 1) return;
    throw FormatError(fmt::format("{}: tensor \"{}\" is {}, which would round away most of what the adapter adds",
                                  inner_->info().directory.string(), tensor.name, torch_name(tensor.dtype)),
                      Remedy::merge_in_dtype);
  }

  void expect(std::size_t part, const Shape& shape, const SourceTensor& base) const {
    const auto& tensor = adapters_.source().tensors()[part];
    if (tensor.shape == shape && is_float(tensor.dtype)) return;
    throw FormatError(fmt::format(
        "{}: tensor \"{}\" is {} of shape [{}]; a floating-point one of [{}] was expected, from the rank in "
        "adapter_config.json and {} of shape [{}] in the base",
        plan_.file.string(), tensor.name, torch_name(tensor.dtype), fmt::join(tensor.shape, ", "),
        fmt::join(shape, ", "), base.name, fmt::join(base.shape, ", ")));
  }

  void check(const SourceTensor& base, const AdapterParts& adapter) const {
    if (adapter.rows) {
      expect(*adapter.rows, {std::ssize(adapter.row_ids), base.shape[1]}, base);
      for (const auto id : adapter.row_ids) {
        if (id < 0 || id >= base.shape[0])
          throw FormatError(fmt::format("{}: has a row for token {}, and {} of the base has {}", plan_.file.string(),
                                        id, base.name, base.shape[0]));
      }
    }
    if (adapter.embedding_a) {
      expect(*adapter.embedding_a, {adapter.adapter.rank, base.shape[0]}, base);
      expect(*adapter.embedding_b, {base.shape[1], adapter.adapter.rank}, base);
    }
    if (!adapter.a) return;
    expect(*adapter.a, {adapter.adapter.rank, base.shape[1]}, base);
    expect(*adapter.b, {base.shape[0], adapter.adapter.rank}, base);
    if (adapter.b_bias) expect(*adapter.b_bias, {base.shape[0]}, base);
    if (adapter.magnitude) expect(*adapter.magnitude, {base.shape[0]}, base);
  }

  /// A change b a of rank R to a matrix [O, I]. Empty: there is none.
  struct LowRank {
    std::vector<float> a;                      ///< [R, I]
    std::optional<std::vector<float>> b = {};  ///< [O, R]; nothing: read by rows
  };

  LowRank low_rank_of(const AdapterParts& adapter, std::uint64_t columns) const {
    if (adapter.a) return {whole(*adapter.a)};
    if (!adapter.embedding_a) return {};
    // An embedding's rows are the columns of B A: its a is B^T, its b is A^T.
    const std::uint64_t rank = adapter.adapter.rank;
    const auto of_tokens = whole(*adapter.embedding_a);
    return {transposed(whole(*adapter.embedding_b), columns, rank),
            transposed(of_tokens, rank, of_tokens.size() / rank)};
  }

  static std::vector<float> transposed(const std::vector<float>& values, std::uint64_t rows, std::uint64_t columns) {
    std::vector<float> turned(values.size());
    for (std::uint64_t i = 0; i < rows; ++i) {
      for (std::uint64_t j = 0; j < columns; ++j) turned[j * rows + i] = values[i * columns + j];
    }
    return turned;
  }

  /// Puts the adapter's own rows of tokens in place of those among `values`, which hold the rows from `row` on.
  void put_rows(const AdapterParts& adapter, std::uint64_t row, std::uint64_t columns,
                std::vector<float>& values) const {
    if (!adapter.rows) return;
    for (std::size_t i = 0; i < adapter.row_ids.size(); ++i) {
      const std::uint64_t id = adapter.row_ids[i];
      if (id < row || (id - row) * columns >= values.size()) continue;
      const auto own = part_values(*adapter.rows, i * columns, columns);
      std::copy(own.begin(), own.end(), iterator_at(values, (id - row) * columns));
    }
  }

  /// Merges the adapter into `values`, which hold the rows of W from `row` on.
  void add(const AdapterParts& adapter, const LowRank& low_rank, std::uint64_t row, std::uint64_t columns,
           std::vector<float>& values) const {
    put_rows(adapter, row, columns, values);
    const auto& a = low_rank.a;
    if (a.empty()) return;
    const auto rows = values.size() / columns;
    const std::uint64_t rank = adapter.adapter.rank;
    const auto b = low_rank.b ? std::vector<float>(iterator_at(*low_rank.b, row * rank),
                                                   iterator_at(*low_rank.b, (row + rows) * rank))
                              : part_values(*adapter.b, row * rank, rows * rank);
    const auto magnitudes = adapter.magnitude ? part_values(*adapter.magnitude, row, rows) : std::vector<float>();
    const auto scale = static_cast<float>(adapter.adapter.scale);
    std::vector<float> delta(columns);
    for (std::uint64_t i = 0; i < rows; ++i) {
      float* out = values.data() + i * columns;
      std::fill(delta.begin(), delta.end(), 0.0f);
      for (std::uint64_t r = 0; r < rank; ++r) {
        const float factor = b[i * rank + r];
        const float* source = a.data() + r * columns;
        for (std::uint64_t j = 0; j < columns; ++j) delta[j] += factor * source[j];
      }
      for (std::uint64_t j = 0; j < columns; ++j) out[j] += scale * delta[j];
      if (!magnitudes.empty()) stretch(out, columns, magnitudes[i]);
    }
  }

  /// Scales a row to the given length. A row of zeros has no direction and gives 0 / 0, as in peft.
  static void stretch(float* row, std::uint64_t columns, float magnitude) {
    double squares = 0;
    for (std::uint64_t j = 0; j < columns; ++j) squares += static_cast<double>(row[j]) * row[j];
    const auto factor = magnitude / static_cast<float>(std::sqrt(squares));
    for (std::uint64_t j = 0; j < columns; ++j) row[j] *= factor;
  }

  AdapterPlan plan_;
  FloatReader base_, adapters_;
  std::optional<DType> result_;
  std::map<std::size_t, Change> changes_;  ///< by tensor number; parts lie in plan_
};

}  // namespace

std::unique_ptr<Source> merge_adapter(std::shared_ptr<const Source> base, const std::filesystem::path& directory,
                                      std::optional<DType> result) {
  return std::make_unique<MergedSource>(std::move(base), directory, result);
}

}  // namespace fsdp
