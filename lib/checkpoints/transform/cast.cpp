// Changes the element type of the tensors of a model, and stores complex tensors as pairs of real numbers.
#include "lib/checkpoints/transform/cast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/checkpoints/transform/transform.hpp"

namespace fsdp {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");
static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);

FloatFormat float_format(DType dtype) {
  if (!is_float(dtype)) throw std::logic_error("no floating-point type");
  return dtype_row(dtype).format;
}

/// The bits of the double with the same value. A NaN keeps the upper bits of its payload.
std::uint64_t upcast(const FloatFormat& format, std::uint64_t bits) {
  if (format.mantissa_bits == 52) return bits;
  const auto magnitude = bits & format.all_ones();
  const auto sign = (bits >> format.sign_shift() & 1) << 63;
  const auto mantissa = magnitude & format.mantissa_mask();
  const bool special = format.has_infinity ? magnitude >= format.infinity() : magnitude == format.all_ones();
  if (special) return sign | std::uint64_t{0x7ff} << 52 | mantissa << (52 - format.mantissa_bits);
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  if (exponent != 0)
    return sign | static_cast<std::uint64_t>(exponent - format.bias() + 1023) << 52 |
           mantissa << (52 - format.mantissa_bits);
  const auto scale = 1 - format.bias() - format.mantissa_bits;
  return sign | std::bit_cast<std::uint64_t>(std::ldexp(static_cast<double>(mantissa), scale));
}

/// Rounds the double with these bits to `format`; returns its bits.
std::uint64_t narrow(const FloatFormat& format, std::uint64_t bits) {
  if (format.mantissa_bits == 52) return bits;
  const auto sign = (bits >> 63) << format.sign_shift();
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const auto mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  const auto overflow = format.has_infinity ? format.infinity() : format.all_ones();
  if (exponent == 0x7ff) {
    if (mantissa == 0) return sign | overflow;
    const auto payload = mantissa >> (52 - format.mantissa_bits);
    const auto quiet = std::uint64_t{1} << (format.mantissa_bits - 1);
    return sign | (format.has_infinity ? format.infinity() | quiet | payload : format.all_ones());
  }
  if (exponent == 0) return sign;  // a subnormal double is far below half of any target's smallest value
  const auto unbiased = exponent - 1023;
  const auto lowest = 1 - format.bias();
  if (unbiased > format.bias() + 1) return sign | overflow;
  const auto shift = 52 - format.mantissa_bits + (unbiased < lowest ? lowest - unbiased : 0);
  if (shift > 53) return sign;
  const auto significand = mantissa | std::uint64_t{1} << 52;
  const auto half = std::uint64_t{1} << (shift - 1);
  const auto rest = significand & (half * 2 - 1);
  auto rounded = significand >> shift;
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  // The leading one of the significand counts as one step of the exponent, and so does a carry out of the significand.
  if (unbiased >= lowest) {
    rounded += static_cast<std::uint64_t>(unbiased - lowest) << format.mantissa_bits;
  }
  return sign | (rounded >= overflow ? overflow : rounded);
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

std::uint64_t load_bits(const std::byte* at, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, at, size);
  return bits;
}

std::uint16_t float_to_bfloat16(std::uint32_t bits) {
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const auto rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return static_cast<std::uint16_t>(nan ? bits >> 16 | 0x40u : rounded);
}

/// Rounds by an addition of floats. Source: github.com/Maratyszcza/FP16, fp16_ieee_from_fp32_value.
std::uint16_t float_to_half(std::uint32_t bits) {
  const auto magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  const auto scaled = magnitude * 0x1.0p+112f * 0x1.0p-110f;
  const auto doubled = bits << 1;
  auto bias = doubled & 0xff000000u;
  bias = bias < 0x71000000u ? 0x71000000u : bias;
  const auto sum = std::bit_cast<std::uint32_t>(std::bit_cast<float>((bias >> 1) + 0x07800000u) + scaled);
  const auto rounded = (sum >> 13 & 0x7c00u) + (sum & 0xfffu);
  const auto nan = 0x7e00u | (bits >> 13 & 0x1ffu);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | (doubled > 0xff000000u ? nan : rounded));
}

template <typename In, typename Out, typename Convert>
void each(std::span<const std::byte> in, std::span<std::byte> out, Convert convert) {
  const auto count = in.size() / sizeof(In);
  for (std::size_t i = 0; i < count; ++i) {
    store<Out>(out.data() + i * sizeof(Out), convert(load<In>(in.data() + i * sizeof(In))));
  }
}

template <typename In, typename Out>
void look_up(const std::vector<std::byte>& table, std::span<const std::byte> in, std::span<std::byte> out) {
  each<In, Out>(in, out, [&](In index) { return load<Out>(table.data() + index * sizeof(Out)); });
}

template <typename In>
void look_up(const std::vector<std::byte>& table, std::size_t size, std::span<const std::byte> in,
             std::span<std::byte> out) {
  if (size == 1) return look_up<In, std::uint8_t>(table, in, out);
  if (size == 2) return look_up<In, std::uint16_t>(table, in, out);
  if (size == 4) return look_up<In, std::uint32_t>(table, in, out);
  look_up<In, std::uint64_t>(table, in, out);
}

/// The smallest magnitude that stands for no finite number.
std::uint64_t beyond(const FloatFormat& format) { return format.has_infinity ? format.infinity() : format.all_ones(); }

template <typename Bits>
bool all_below(std::span<const std::byte> elements, std::uint64_t magnitude_mask, std::uint64_t limit) {
  const auto mask = static_cast<Bits>(magnitude_mask);
  Bits largest = 0;
  for (std::size_t i = 0; i < elements.size() / sizeof(Bits); ++i)
    largest = std::max(largest, static_cast<Bits>(load<Bits>(elements.data() + i * sizeof(Bits)) & mask));
  return largest < limit;
}

/// True when no element is infinite or NaN.
bool all_finite(const FloatFormat& format, std::span<const std::byte> elements) {
  const auto mask = format.all_ones(), limit = beyond(format);
  const auto bits = format.sign_shift() + 1;
  return bits == 8    ? all_below<std::uint8_t>(elements, mask, limit)
         : bits == 16 ? all_below<std::uint16_t>(elements, mask, limit)
         : bits == 32 ? all_below<std::uint32_t>(elements, mask, limit)
                      : all_below<std::uint64_t>(elements, mask, limit);
}

constexpr std::uint64_t kBufferElements = 1u << 16;  // fits the second-level cache together with the result

class CastSource final : public DecoratedSource {
 public:
  CastSource(std::shared_ptr<const Source> source, DType dtype) : DecoratedSource(std::move(source)) {
    if (!is_float(dtype)) {
      throw RequestError(
          std::string(torch_name(dtype)) +
              " is no floating-point type; take float32, bfloat16, float16, float64, float8_e4m3fn or float8_e5m2",
          Remedy::of_dtype);
    }
    const auto model = model_part(*inner_);
    // Codes, whatever type they are stored as, and scales of matrices in 4 bits stay as bitsandbytes reads them.
    const auto stored = find_stored_nf4(*inner_);
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      const bool is_stored = stored.contains(tensor.name) || is_part_of(stored, tensor.name);
      const bool changes = model.contains[i] && is_float(tensor.dtype) && tensor.dtype != dtype && !is_stored;
      if (changes && converters_.find(tensor.dtype) == converters_.end()) {
        converters_.emplace(tensor.dtype, FloatConverter(tensor.dtype, dtype));
      }
      if (changes) tensor.dtype = dtype;
      if (is_nf4_state(tensor.name)) {
        const auto& text = states_.emplace(i, state_of(i, dtype)).first->second;
        tensor.shape = {std::ssize(text)};
        tensor.stored_bytes = text.size();
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto inner = inner_tensor_.at(tensor);
    const auto from = inner_->tensors()[inner].dtype, to = tensors_[tensor].dtype;
    if (const auto state = states_.find(inner); state != states_.end()) {
      check_read(tensors_[tensor], first, count, out.size());
      std::memcpy(out.data(), state->second.data() + first, count);
      return std::nullopt;
    }
    if (from == to) return inner_->read(inner, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto& converter = converters_.at(from);
    const auto in_size = dtype_size_bytes(from), out_size = dtype_size_bytes(to);
    const auto step = inner_->prefers_whole(inner) ? std::max<std::uint64_t>(count, 1) : kBufferElements;
    std::vector<std::byte> buffer(std::min(step, count) * in_size);
    for (std::uint64_t done = 0; done < count; done += step) {
      const auto part = std::min(step, count - done);
      const auto in = std::span(buffer).first(part * in_size);
      inner_->read(inner, first + done, part, in, sums);
      converter.convert(in, out.subspan(done * out_size, part * out_size), *inner_, inner);
    }
    return std::nullopt;
  }

 private:
  /// The JSON that describes a matrix in 4 bits, whose codes stand for numbers of type `dtype` from now on.
  std::string state_of(std::size_t tensor, DType dtype) const {
    std::string text(inner_->tensors()[tensor].size_bytes(), '\0');
    inner_->read(tensor, 0, text.size(), std::as_writable_bytes(std::span(text.data(), text.size())), nullptr);
    auto state = parse_json(text, inner_->tensors()[tensor].name);
    state["dtype"] = torch_name(dtype);
    return json_text(state);
  }

  std::map<DType, FloatConverter> converters_;  // by the type converted from
  std::map<std::size_t, std::string> states_;   // of matrices in 4 bits, by number of the inner tensor
};

class ComplexViewSource final : public DecoratedSource {
 public:
  explicit ComplexViewSource(std::shared_ptr<const Source> source) : DecoratedSource(std::move(source)) {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (is_complex(tensor.dtype)) {
        constexpr const char* kSuffix = "@view_as_real";
        tensor.dtype = tensor.dtype == DType::c64 ? DType::f32 : DType::f64;
        tensor.shape.push_back(2);
        tensor.name += kSuffix;
        auto* last = tensor.path.empty() ? nullptr : std::get_if<std::string>(&tensor.path.back());
        if (last != nullptr) {
          *last += kSuffix;
        } else {
          tensor.path = {tensor.name};
        }
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
    check_unique_names(*this);
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto inner = inner_tensor_.at(tensor);
    if (!is_complex(inner_->tensors()[inner].dtype)) return inner_->read(inner, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    if (count == 0) return std::nullopt;
    if (first % 2 == 0 && count % 2 == 0) return inner_->read(inner, first / 2, count / 2, out, sums);
    // A half at either end is read by itself; the whole numbers between them go straight to `out`.
    const auto half = dtype_size_bytes(tensors_[tensor].dtype);
    const auto copy_half = [&](std::uint64_t number, std::span<std::byte> to) {
      std::vector<std::byte> pair(2 * half);
      inner_->read(inner, number / 2, 1, pair, nullptr);  // no sums: the other half would add them again
      std::memcpy(to.data(), pair.data() + number % 2 * half, half);
    };
    auto begin = first, end = first + count;
    if (begin % 2 != 0) copy_half(begin++, out.first(half));
    if (end % 2 != 0 && end > begin) copy_half(--end, out.last(half));
    if (end > begin) {
      inner_->read(inner, begin / 2, (end - begin) / 2, out.subspan((begin - first) * half, (end - begin) * half),
                   sums);
    }
    return std::nullopt;
  }
};

}  // namespace

double float_to_double(const FloatFormat& format, std::span<const std::byte> element) {
  if (element.size() == sizeof(float)) return static_cast<double>(load<float>(element.data()));
  return std::bit_cast<double>(upcast(format, load_bits(element.data(), element.size())));
}

FloatConverter::FloatConverter(DType from, DType to) : from_(from), to_(to) {
  const auto in = float_format(from), out = float_format(to);
  const auto in_size = dtype_size_bytes(from), out_size = dtype_size_bytes(to);
  if (from == to || in_size > 2) return;
  const std::size_t values = std::size_t{1} << (8 * in_size);
  table_.resize(values * out_size);
  for (std::size_t i = 0; i < values; ++i) {
    const auto bits = narrow(out, upcast(in, i));
    std::memcpy(table_.data() + i * out_size, &bits, out_size);
  }
}

void FloatConverter::convert(std::span<const std::byte> in, std::span<std::byte> out) const {
  const auto in_size = dtype_size_bytes(from_), out_size = dtype_size_bytes(to_);
  if (in.size() % in_size != 0 || out.size() / out_size != in.size() / in_size || out.size() % out_size != 0) {
    throw std::logic_error("FloatConverter: sizes do not match");
  }
  if (in.empty()) return;
  if (from_ == to_) {
    std::memcpy(out.data(), in.data(), in.size());
  } else if (in_size == 1) {
    look_up<std::uint8_t>(table_, out_size, in, out);
  } else if (in_size == 2) {
    look_up<std::uint16_t>(table_, out_size, in, out);
  } else if (from_ == DType::f32 && to_ == DType::f64) {
    each<float, double>(in, out, [](float value) { return static_cast<double>(value); });
  } else if (from_ == DType::f64 && to_ == DType::f32) {
    each<double, float>(in, out, [](double value) { return static_cast<float>(value); });
  } else if (from_ == DType::f32 && to_ == DType::bf16) {
    each<std::uint32_t, std::uint16_t>(in, out, float_to_bfloat16);
  } else if (from_ == DType::f32 && to_ == DType::f16) {
    each<std::uint32_t, std::uint16_t>(in, out, float_to_half);
  } else {
    const auto source = float_format(from_), target = float_format(to_);
    for (std::size_t i = 0; i < in.size() / in_size; ++i) {
      const auto bits = narrow(target, upcast(source, load_bits(in.data() + i * in_size, in_size)));
      std::memcpy(out.data() + i * out_size, &bits, out_size);
    }
  }
}

void FloatConverter::convert(std::span<const std::byte> in, std::span<std::byte> out, const Source& source,
                             std::size_t tensor) const {
  convert(in, out);
  const auto from = float_format(from_), to = float_format(to_);
  const bool has_all = to.has_infinity && (to.bias() > from.bias() ||
                                           (to.bias() == from.bias() && to.mantissa_bits >= from.mantissa_bits));
  if (has_all || all_finite(to, out)) return;
  const auto in_size = dtype_size_bytes(from_), out_size = dtype_size_bytes(to_);
  for (std::size_t i = 0; i < in.size() / in_size; ++i) {
    const auto element = in.subspan(i * in_size, in_size);
    if (!all_finite(from, element) || all_finite(to, out.subspan(i * out_size, out_size))) continue;
    const auto& info = source.info();
    throw FormatError(
        fmt::format("{}: '{}' has an element of {}, and the largest {} is {}: {} can hold it",
                    (info.files.size() == 1 ? info.files[0] : info.directory).string(), source.tensors()[tensor].name,
                    float_to_double(from, element), torch_name(to_), std::bit_cast<double>(upcast(to, beyond(to) - 1)),
                    to.bias() < float_format(DType::f32).bias() ? "bfloat16" : torch_name(from_)),
        Remedy::dtype_or_exclude);
  }
}

FloatReader::FloatReader(std::shared_ptr<const Source> source) : source_(std::move(source)) {
  for (const auto& tensor : source_->tensors()) {
    if (is_float(tensor.dtype) && !converters_.contains(tensor.dtype))
      converters_.emplace(tensor.dtype, FloatConverter(tensor.dtype, DType::f32));
  }
}

std::vector<float> FloatReader::read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                     std::vector<ReadSum>* sums) const {
  const auto dtype = source_->tensors()[tensor].dtype;
  std::vector<float> values(count);
  const auto out = std::as_writable_bytes(std::span(values));
  if (dtype == DType::f32) {
    source_->read(tensor, first, count, out, sums);
    return values;
  }
  std::vector<std::byte> stored(count * dtype_size_bytes(dtype));
  source_->read(tensor, first, count, stored, sums);
  converters_.at(dtype).convert(stored, out, *source_, tensor);
  return values;
}

std::unique_ptr<Source> cast(std::shared_ptr<const Source> source, DType dtype) {
  return std::make_unique<CastSource>(std::move(source), dtype);
}

std::unique_ptr<Source> view_complex_as_real(std::shared_ptr<const Source> source) {
  return std::make_unique<ComplexViewSource>(std::move(source));
}

}  // namespace fsdp
