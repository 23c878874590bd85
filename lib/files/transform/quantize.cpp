#include "lib/files/transform/quantize.hpp"

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

#include "lib/base/error.hpp"
#include "lib/base/recent.hpp"
#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/files/read/stored_quantization.hpp"
#include "lib/files/transform/cast.hpp"
#include "lib/files/transform/transform.hpp"

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
      throw UsageError(fmt::format("{}: '{}' is in 4 bits already: give --dequantize with --quantize to make it anew",
                                   info_.directory.string(), stored.begin()->first));
    bool found = false;
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      const auto& tensor = inner_->tensors()[i];
      const bool is_matrix = is_matrix_of_block(tensor);
      found = found || is_matrix;
      is_matrix ? add_matrix(i, tensor) : add(i, Part::whole, tensor);
    }
    if (!found)
      throw UsageError(
          fmt::format("{}: --quantize is for models under transformers' names, and no tensor here is a matrix "
                      "like model.layers.0.mlp.up_proj.weight",
                      info_.directory.string()));
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
        read_codes(matrix, static_cast<std::int64_t>(first), out, sums);
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
    add_part(Part::quant_map, ".quant_map", DType::f32, {static_cast<std::int64_t>(kernels::kNf4Code.size())});
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
    const auto values = floats_.read(matrix, static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(n), sums);
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(values.begin(), values.end(), finite))
      throw FormatError(info_.directory.string() + ": '" + tensor.name +
                        "' has elements that are not finite, so it cannot be kept in 4 bits (--check)");
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
    const auto last = first + static_cast<std::int64_t>(out.size());
    for_blocks(matrix, first / kNf4Block_bytes, parts_of(last, kNf4Block_bytes), sums,
               [&](std::int64_t block, const Blocks& made) {
                 const auto here = block * kNf4Block_bytes,
                            there = here + static_cast<std::int64_t>(made.packed.size());
                 const auto from = std::max(first, here), to = std::min(last, there);
                 std::memcpy(out.data() + (from - first), made.packed.data() + (from - here),
                             static_cast<std::size_t>(to - from));
               });
  }

  std::shared_ptr<const Scales> scales(std::size_t matrix) const {
    return scales_.get(matrix, [&] {
      Scales made;
      const auto n = parts_of(num_elements(inner_->tensors()[matrix].shape), kNf4Block);
      made.absmax.reserve(static_cast<std::size_t>(n));
      for_blocks(matrix, 0, n, nullptr, [&](std::int64_t, const Blocks& some) {
        made.absmax.insert(made.absmax.end(), some.absmax.begin(), some.absmax.end());
      });
      if (!nested_) return made;
      made.codes.resize(made.absmax.size());
      made.nested.resize(static_cast<std::size_t>(parts_of(n, kernels::kEightBitBlock)));
      made.offset = kernels::nf4_nest_scales({made.codes.data(), made.nested.data(), made.absmax.data(), n});
      return made;
    });
  }

  FloatReader floats_;
  bool nested_;
  std::vector<Part> part_;  ///< by tensor number
  mutable Recent<std::size_t, Scales> scales_;
};

class DequantizedSource final : public DecoratedSource {
 public:
  DequantizedSource(std::shared_ptr<const Source> source, const std::map<std::string, StoredNf4>& stored)
      : DecoratedSource(std::move(source)) {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (is_part_of(stored, tensor.name)) continue;
      if (const auto found = stored.find(tensor.name); found != stored.end()) {
        tensor.shape = found->second.shape;
        tensor.dtype = found->second.dtype;
        matrices_.emplace(tensors_.size(), found->second);
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto found = matrices_.find(tensor);
    if (found == matrices_.end() || count == 0) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto dtype = tensors_[tensor].dtype;
    const auto item = dtype_size_bytes(dtype);
    const FloatConverter converter(DType::f32, dtype);
    const auto from = static_cast<std::int64_t>(first), to = static_cast<std::int64_t>(first + count);
    for (auto block = from / kNf4Block; block * kNf4Block < to; block += kBlocksAtOnce) {
      const auto end = std::min(block + kBlocksAtOnce, (to + kNf4Block - 1) / kNf4Block);
      const auto values = blocks(found->second, block, end, sums);
      const auto begin = std::max(from, block * kNf4Block), last = std::min(to, end * kNf4Block);
      const std::span wanted(values.data() + (begin - block * kNf4Block), static_cast<std::size_t>(last - begin));
      converter.convert(std::as_bytes(wanted),
                        out.subspan(static_cast<std::size_t>(begin - from) * item, wanted.size() * item), *this,
                        tensor);
    }
    return std::nullopt;
  }

 private:
  template <typename Value>
  std::vector<Value> part(std::size_t tensor, std::int64_t first, std::int64_t last, std::vector<ReadSum>* sums) const {
    std::vector<Value> values(static_cast<std::size_t>(last - first));
    inner_->read(tensor, static_cast<std::uint64_t>(first), values.size(), std::as_writable_bytes(std::span(values)),
                 sums);
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
    const auto item = static_cast<std::int64_t>(dtype_size_bytes(codes.dtype));
    const auto stored = static_cast<std::int64_t>(codes.size_bytes());
    const auto first = begin * kNf4Block_bytes, last = std::min(end * kNf4Block_bytes, stored);
    std::vector<std::byte> packed(static_cast<std::size_t>((end - begin) * kNf4Block_bytes));
    inner_->read(matrix.codes, static_cast<std::uint64_t>(first / item),
                 static_cast<std::uint64_t>((last - first) / item),
                 std::span(packed).first(static_cast<std::size_t>(last - first)), sums);
    const auto absmax = scales(matrix, begin, end, sums);
    std::vector<float> values(static_cast<std::size_t>((end - begin) * kNf4Block));
    const kernels::Nf4Args args{values.data(), reinterpret_cast<const std::uint8_t*>(packed.data()), absmax.data(),
                                kernels::nf4_pairs().data(), static_cast<std::int64_t>(values.size())};
    kernels::table().dequantize_nf4(kernels::Type::f32, args, 0, end - begin);
    return values;
  }

  std::map<std::size_t, StoredNf4> matrices_;  ///< by tensor number
};

class Fp8Source final : public DecoratedSource {
 public:
  Fp8Source(std::shared_ptr<const Source> source, const std::map<std::string, StoredFp8>& stored)
      : DecoratedSource(std::move(source)), floats_(inner_) {
    std::set<std::size_t> scales;
    for (const auto& [name, matrix] : stored) scales.insert(matrix.scales);
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      if (scales.contains(i)) continue;
      auto tensor = inner_->tensors()[i];
      if (const auto found = stored.find(tensor.name); found != stored.end()) {
        tensor.dtype = DType::f32;
        matrices_.emplace(tensors_.size(), found->second);
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto found = matrices_.find(tensor);
    if (found == matrices_.end() || count == 0) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    constexpr std::uint64_t at_once = 1u << 20;
    const auto step = inner_->prefers_whole(found->second.codes) ? count : at_once;
    for (std::uint64_t done = 0; done < count; done += step) {
      const auto piece = std::min(step, count - done);
      const auto values = elements(found->second, first + done, piece, sums);
      std::memcpy(out.data() + done * sizeof(float), values.data(), values.size() * sizeof(float));
    }
    return std::nullopt;
  }

 private:
  std::vector<float> elements(const StoredFp8& matrix, std::uint64_t first, std::uint64_t count,
                              std::vector<ReadSum>* sums) const {
    const auto columns = static_cast<std::uint64_t>(inner_->tensors()[matrix.codes].shape[1]);
    const auto rows_of_block = static_cast<std::uint64_t>(matrix.block_rows);
    const auto columns_of_block = static_cast<std::uint64_t>(matrix.block_cols);
    const auto scales_of_row = static_cast<std::uint64_t>(inner_->tensors()[matrix.scales].shape[1]);
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
  std::map<std::size_t, StoredFp8> matrices_;  ///< by tensor number
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
