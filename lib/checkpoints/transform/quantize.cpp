#include "lib/checkpoints/transform/quantize.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/recent.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/transform/cast.hpp"
#include "lib/checkpoints/transform/transform.hpp"
#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/kernels.hpp"

namespace fsdp {
namespace {

using kernels::kNf4Block, kernels::kNf4Block_bytes;

constexpr std::int64_t kBlocksAtOnce = 1 << 14;
/// Number of matrices whose scales are cached: copying threads may work on as many at once.
constexpr std::size_t kRecentMatrices = 8;
/// Longest decimal text of a float32.
constexpr std::size_t kLongestOffset = 24;

std::int64_t parts_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// True for a matrix of a block, such as "layers.3.self_attn.q_proj.weight" or "h.3.attn.c_attn.weight", after any
/// prefix.
bool is_of_block(std::string_view name, std::string_view list) {
  const auto at = name.find(list);
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.') || !name.ends_with(".weight")) return false;
  name.remove_prefix(at + list.size());
  const auto digits = name.find_first_not_of("0123456789");
  return digits != std::string_view::npos && digits > 0 && name[digits] == '.';
}

bool is_matrix_of_block(const SourceTensor& tensor) {
  return tensor.shape.size() == 2 && tensor.shape[0] > 0 && tensor.shape[1] > 0 && is_float(tensor.dtype) &&
         (is_of_block(tensor.name, "layers.") || is_of_block(tensor.name, "h."));
}

/// The part of a matrix that a tensor of the result holds.
enum class Part { whole, codes, absmax, nested_absmax, quant_map, nested_quant_map, state };

struct Scales {
  std::vector<float> absmax;
  std::vector<std::uint8_t> codes;  ///< codes of the scales; like the rest, with double quantization only
  std::vector<float> nested;
  float offset = 0;
};

/// JSON as python writes it. Padded with spaces, which transformers ignores, so that the length is known before the
/// offset.
std::string state_text(const SourceTensor& matrix, const float* offset) {
  auto text = fmt::format(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}])", kNf4Block,
                          torch_name(matrix.dtype), fmt::join(matrix.shape, ", "));
  if (offset == nullptr) return text + "}";
  text +=
      fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": )", kernels::kEightBitBlock);
  const auto length = text.size() + kLongestOffset + 1;
  text += fmt::format("{}}}", static_cast<double>(*offset));
  text.resize(length, ' ');
  return text;
}

class QuantizedSource final : public DecoratedSource {
 public:
  QuantizedSource(std::shared_ptr<const Source> source, const QuantizeConfig& quantize)
      : DecoratedSource(std::move(source)), floats_(inner_), nested_(quantize.double_quant), scales_(kRecentMatrices) {
    if (const auto stored = find_stored_nf4(*inner_); !stored.empty())
      throw RequestError(fmt::format("{}: '{}' is in 4 bits already", info_.directory.string(), stored.begin()->first),
                         Remedy::quantize_anew);
    bool found = false;
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      const auto& tensor = inner_->tensors()[i];
      const bool is_matrix = is_matrix_of_block(tensor);
      found = found || is_matrix;
      is_matrix ? add_matrix(i, tensor) : add(i, Part::whole, tensor);
    }
    if (!found)
      throw RequestError(
          fmt::format("{}: 4 bits are for models under transformers' names, and no tensor here is a matrix "
                      "like model.layers.0.mlp.up_proj.weight",
                      info_.directory.string()),
          Remedy::of_quantize);
    check_unique_names(*this);
    add_all_values();
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    if (part_[tensor] == Part::whole || count == 0) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto matrix = inner_tensor_[tensor];
    const auto copy_from = [&](const auto& values) {
      std::memcpy(out.data(), std::as_bytes(std::span(values)).data() + first * sizeof(values[0]), out.size());
    };
    switch (part_[tensor]) {
      case Part::codes:
        read_codes(matrix, first, out, sums);
        break;
      case Part::absmax:
        nested_ ? copy_from(scales(matrix)->codes) : copy_from(scales(matrix)->absmax);
        break;
      case Part::nested_absmax:
        copy_from(scales(matrix)->nested);
        break;
      case Part::quant_map:
        copy_from(kernels::kNf4Code);
        break;
      case Part::nested_quant_map:
        copy_from(kernels::signed_code().values);
        break;
      default:
        copy_from(state_text(inner_->tensors()[matrix], nested_ ? &scales(matrix)->offset : nullptr));
    }
    return std::nullopt;
  }

  bool prefers_whole(std::size_t tensor) const override {
    const auto part = part_[tensor];
    return (part == Part::whole || part == Part::codes) && DecoratedSource::prefers_whole(tensor);
  }

 private:
  void add(std::size_t inner, Part part, SourceTensor tensor) {
    add_tensor(inner, std::move(tensor));
    part_.push_back(part);
  }

  void add_matrix(std::size_t inner, const SourceTensor& matrix) {
    const auto n = num_elements(matrix.shape), blocks = parts_of(n, kNf4Block);
    const auto add_part = [&](Part part, const std::string& suffix, DType dtype, Shape shape) {
      auto tensor = matrix;
      tensor.name += suffix;
      if (auto* last = tensor.path.empty() ? nullptr : std::get_if<std::string>(&tensor.path.back())) *last += suffix;
      tensor.dtype = dtype;
      tensor.shape = std::move(shape);
      tensor.stored_bytes = tensor.size_bytes();
      add(inner, part, std::move(tensor));
    };
    add_part(Part::codes, "", DType::u8, {parts_of(n, 2), 1});
    add_part(Part::absmax, ".absmax", nested_ ? DType::u8 : DType::f32, {blocks});
    add_part(Part::quant_map, ".quant_map", DType::f32, {std::ssize(kernels::kNf4Code)});
    if (nested_) {
      add_part(Part::nested_absmax, ".nested_absmax", DType::f32, {parts_of(blocks, kernels::kEightBitBlock)});
      add_part(Part::nested_quant_map, ".nested_quant_map", DType::f32, {kernels::kEightBitBlock});
    }
    const float any = 0;
    const auto length = state_text(matrix, nested_ ? &any : nullptr).size();
    add_part(Part::state, ".quant_state.bitsandbytes__nf4", DType::u8, {static_cast<std::int64_t>(length)});
  }

  /// Blocks [begin, end) of a matrix.
  struct Blocks {
    std::vector<std::uint8_t> packed;
    std::vector<float> absmax;
  };
  Blocks blocks(std::size_t matrix, std::int64_t begin, std::int64_t end, std::vector<ReadSum>* sums) const {
    const auto& tensor = inner_->tensors()[matrix];
    const auto first = begin * kNf4Block, n = std::min(num_elements(tensor.shape), end * kNf4Block) - first;
    const auto values = floats_.read(matrix, first, n, sums);
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(values.begin(), values.end(), finite))
      throw FormatError(info_.directory.string() + ": '" + tensor.name +
                            "' has elements that are not finite, so it cannot be kept in 4 bits",
                        Remedy::check);
    Blocks made{std::vector<std::uint8_t>(static_cast<std::size_t>((end - begin) * kNf4Block_bytes)),
                std::vector<float>(static_cast<std::size_t>(end - begin))};
    kernels::table().quantize_nf4({made.packed.data(), made.absmax.data(), values.data(), n}, 0, end - begin);
    return made;
  }

  /// \param use  called with some blocks of a matrix at a time: the number of the first block, and the blocks
  template <typename Use>
  void for_blocks(std::size_t matrix, std::int64_t begin, std::int64_t end, std::vector<ReadSum>* sums, Use use) const {
    const auto step = inner_->prefers_whole(matrix) ? end - begin : kBlocksAtOnce;
    for (auto block = begin; block < end; block += step)
      use(block, blocks(matrix, block, std::min(end, block + step), sums));
  }

  void read_codes(std::size_t matrix, std::int64_t first, std::span<std::byte> out, std::vector<ReadSum>* sums) const {
    const auto last = first + std::ssize(out);
    for_blocks(matrix, first / kNf4Block_bytes, parts_of(last, kNf4Block_bytes), sums,
               [&](std::int64_t block, const Blocks& made) {
                 const auto here = block * kNf4Block_bytes, there = here + std::ssize(made.packed);
                 const auto from = std::max(first, here), to = std::min(last, there);
                 std::memcpy(out.data() + (from - first), made.packed.data() + (from - here),
                             static_cast<std::size_t>(to - from));
               });
  }

  std::shared_ptr<const Scales> scales(std::size_t matrix) const {
    return scales_.get(matrix, [&] {
      Scales made;
      const auto n = parts_of(num_elements(inner_->tensors()[matrix].shape), kNf4Block);
      made.absmax.reserve(n);
      for_blocks(matrix, 0, n, nullptr, [&](std::int64_t, const Blocks& some) {
        made.absmax.insert(made.absmax.end(), some.absmax.begin(), some.absmax.end());
      });
      if (!nested_) return made;
      made.codes.resize(made.absmax.size());
      made.nested.resize(parts_of(n, kernels::kEightBitBlock));
      made.offset = kernels::nf4_nest_scales({made.codes.data(), made.nested.data(), made.absmax.data(), n});
      return made;
    });
  }

  FloatReader floats_;
  bool nested_;
  std::vector<Part> part_;  ///< by tensor number
  mutable Recent<std::size_t, Scales> scales_;
};

/// A source of which some tensors are matrices that are decoded when they are read.
/// \tparam Stored  where the parts of a matrix are
template <typename Stored>
class DecodedSource : public DecoratedSource {
 public:
  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const final {
    const auto found = matrices_.find(tensor);
    if (found == matrices_.end() || count == 0) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    decode(found->second, tensor, first, count, out, sums);
    return std::nullopt;
  }

 protected:
  using DecoratedSource::DecoratedSource;

  /// Adds all tensors and values. \param is_part   of a matrix, so that it is no tensor of its own
  /// \param describe  changes the tensor that has a matrix' name
  template <typename IsPart, typename Describe>
  void add_all(const std::map<std::string, Stored>& stored, const IsPart& is_part, const Describe& describe) {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (is_part(i)) continue;
      if (const auto found = stored.find(tensor.name); found != stored.end()) {
        describe(tensor, found->second);
        matrices_.emplace(tensors_.size(), found->second);
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
  }

 private:
  /// \pre count > 0, and the elements are there
  virtual void decode(const Stored& matrix, std::size_t tensor, std::uint64_t first, std::uint64_t count,
                      std::span<std::byte> out, std::vector<ReadSum>* sums) const = 0;

  std::map<std::size_t, Stored> matrices_;  ///< by tensor number
};

class DequantizedSource final : public DecodedSource<StoredNf4> {
 public:
  DequantizedSource(std::shared_ptr<const Source> source, const std::map<std::string, StoredNf4>& stored)
      : DecodedSource(std::move(source)) {
    add_all(
        stored, [&](std::size_t i) { return is_part_of(stored, inner_->tensors()[i].name); },
        [](SourceTensor& tensor, const StoredNf4& matrix) {
          tensor.shape = matrix.shape;
          tensor.dtype = matrix.dtype;
        });
  }

 private:
  void decode(const StoredNf4& matrix, std::size_t tensor, std::uint64_t first, std::uint64_t count,
              std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto dtype = tensors_[tensor].dtype;
    const auto item = dtype_size_bytes(dtype);
    const FloatConverter converter(DType::f32, dtype);
    const auto from = static_cast<std::int64_t>(first), to = static_cast<std::int64_t>(first + count);
    for (auto block = from / kNf4Block; block * kNf4Block < to; block += kBlocksAtOnce) {
      const auto end = std::min(block + kBlocksAtOnce, (to + kNf4Block - 1) / kNf4Block);
      const auto values = blocks(matrix, block, end, sums);
      const auto begin = std::max(from, block * kNf4Block), last = std::min(to, end * kNf4Block);
      const std::span wanted(values.data() + (begin - block * kNf4Block), static_cast<std::size_t>(last - begin));
      converter.convert(std::as_bytes(wanted),
                        out.subspan(static_cast<std::size_t>(begin - from) * item, wanted.size() * item), *this,
                        tensor);
    }
  }

  template <typename Value>
  std::vector<Value> part(std::size_t tensor, std::int64_t first, std::int64_t last, std::vector<ReadSum>* sums) const {
    std::vector<Value> values(last - first);
    inner_->read(tensor, first, values.size(), std::as_writable_bytes(std::span(values)), sums);
    return values;
  }

  std::vector<float> scales(const StoredNf4& matrix, std::int64_t begin, std::int64_t end,
                            std::vector<ReadSum>* sums) const {
    if (!matrix.nested_absmax) return part<float>(matrix.absmax, begin, end, sums);
    const auto codes = part<std::uint8_t>(matrix.absmax, begin, end, sums);
    const auto nested = part<float>(*matrix.nested_absmax, begin / kernels::kEightBitBlock,
                                    (end + kernels::kEightBitBlock - 1) / kernels::kEightBitBlock, sums);
    std::vector<float> values(codes.size());
    kernels::nf4_nested_scales(
        {values.data(), codes.data(), nested.data(), matrix.nested_offset, begin % kernels::kEightBitBlock}, 0,
        end - begin);
    return values;
  }

  /// Reads the elements of blocks [begin, end).
  std::vector<float> blocks(const StoredNf4& matrix, std::int64_t begin, std::int64_t end,
                            std::vector<ReadSum>* sums) const {
    const auto& codes = inner_->tensors()[matrix.codes];
    const std::int64_t item = dtype_size_bytes(codes.dtype);
    const std::int64_t stored = codes.size_bytes();
    const auto first = begin * kNf4Block_bytes, last = std::min(end * kNf4Block_bytes, stored);
    std::vector<std::byte> packed((end - begin) * kNf4Block_bytes);
    inner_->read(matrix.codes, first / item, (last - first) / item, std::span(packed).first(last - first), sums);
    const auto absmax = scales(matrix, begin, end, sums);
    std::vector<float> values((end - begin) * kNf4Block);
    const kernels::Nf4Args args{values.data(), reinterpret_cast<const std::uint8_t*>(packed.data()), absmax.data(),
                                kernels::nf4_pairs().data(), std::ssize(values)};
    kernels::table().dequantize_nf4(kernels::Type::f32, args, 0, end - begin);
    return values;
  }
};

class Fp8Source final : public DecodedSource<StoredFp8> {
 public:
  Fp8Source(std::shared_ptr<const Source> source, const std::map<std::string, StoredFp8>& stored)
      : DecodedSource(std::move(source)), floats_(inner_) {
    std::set<std::size_t> scales;
    for (const auto& [name, matrix] : stored) scales.insert(matrix.scales);
    add_all(
        stored, [&](std::size_t i) { return scales.contains(i); },
        [](SourceTensor& tensor, const StoredFp8&) { tensor.dtype = DType::f32; });
  }

 private:
  void decode(const StoredFp8& matrix, std::size_t, std::uint64_t first, std::uint64_t count, std::span<std::byte> out,
              std::vector<ReadSum>* sums) const override {
    constexpr std::uint64_t at_once = 1u << 20;
    const auto step = inner_->prefers_whole(matrix.codes) ? count : at_once;
    for (std::uint64_t done = 0; done < count; done += step) {
      const auto piece = std::min(step, count - done);
      const auto values = elements(matrix, first + done, piece, sums);
      std::memcpy(out.data() + done * sizeof(float), values.data(), values.size() * sizeof(float));
    }
  }

  std::vector<float> elements(const StoredFp8& matrix, std::uint64_t first, std::uint64_t count,
                              std::vector<ReadSum>* sums) const {
    const std::uint64_t columns = inner_->tensors()[matrix.codes].shape[1];
    const std::uint64_t rows_of_block = matrix.block_rows;
    const std::uint64_t columns_of_block = matrix.block_cols;
    const std::uint64_t scales_of_row = inner_->tensors()[matrix.scales].shape[1];
    const auto first_row = first / columns / rows_of_block, last_row = (first + count - 1) / columns / rows_of_block;
    auto values = floats_.read(matrix.codes, first, count, sums);
    const auto scales =
        floats_.read(matrix.scales, first_row * scales_of_row, (last_row + 1 - first_row) * scales_of_row, sums);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto row = (first + i) / columns / rows_of_block - first_row;
      values[i] *= scales[row * scales_of_row + (first + i) % columns / columns_of_block];
    }
    return values;
  }

  FloatReader floats_;
};

}  // namespace

std::unique_ptr<Source> quantize_nf4(std::shared_ptr<const Source> source, const QuantizeConfig& quantize) {
  return std::make_unique<QuantizedSource>(std::move(source), quantize);
}

nlohmann::json hf_quantization_config(const QuantizeConfig& quantize, DType compute) {
  return {{"quant_method", "bitsandbytes"},
          {"_load_in_4bit", true},
          {"_load_in_8bit", false},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", quantize.double_quant},
          {"bnb_4bit_compute_dtype", torch_name(compute)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", nullptr},
          {"llm_int8_threshold", 6.0}};
}

std::shared_ptr<const Source> dequantize(std::shared_ptr<const Source> source) {
  const auto stored = find_stored_nf4(*source);
  if (stored.empty()) return source;
  return std::make_shared<DequantizedSource>(std::move(source), stored);
}

std::shared_ptr<const Source> dequantize_fp8(std::shared_ptr<const Source> source) {
  const auto stored = find_stored_fp8(*source);
  if (stored.empty()) return source;
  return std::make_shared<Fp8Source>(std::move(source), stored);
}

}  // namespace fsdp
