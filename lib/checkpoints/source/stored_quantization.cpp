#include "lib/checkpoints/source/stored_quantization.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/nf4_code.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__";
constexpr std::array<std::string_view, 4> kParts{".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"};
constexpr std::uint64_t kLongestState_bytes = 1u << 16;

std::int64_t parts_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

class Finder {
 public:
  explicit Finder(const Source& source) : source_(source) {
    for (std::size_t i = 0; i < source.tensors().size(); ++i) numbers_.emplace(source.tensors()[i].name, i);
  }

  std::map<std::string, StoredNf4> find() const {
    std::map<std::string, StoredNf4> found;
    for (const auto& [name, number] : numbers_) {
      const auto at = name.find(kState);
      if (at == std::string::npos) continue;
      const auto matrix = name.substr(0, at);
      if (name.substr(at + kState.size()) != "nf4")
        throw wrong(matrix, "is stored as " + name.substr(at + kState.size()) + "; nf4 can be read");
      found.emplace(matrix, read(matrix, number));
    }
    return found;
  }

 private:
  FormatError wrong(const std::string& matrix, const std::string& what) const {
    const auto& info = source_.info();
    return FormatError(fmt::format("{}: '{}' {}", info.directory.string(), matrix, what));
  }

  std::size_t part(const std::string& matrix, const std::string& suffix) const {
    const auto found = numbers_.find(matrix + suffix);
    if (found == numbers_.end()) throw wrong(matrix, "is stored in 4 bits, but lacks its '" + suffix + "'");
    return found->second;
  }

  void expect(const std::string& matrix, std::size_t tensor, DType dtype, std::int64_t elements) const {
    const auto& found = source_.tensors()[tensor];
    if (found.dtype == dtype && num_elements(found.shape) == elements) return;
    throw wrong(matrix, fmt::format("has a '{}' of {} {}s, {} {}s were expected", found.name, num_elements(found.shape),
                                    torch_name(found.dtype), elements, torch_name(dtype)));
  }

  nlohmann::json state(const std::string& matrix, std::size_t tensor) const {
    const auto& stored = source_.tensors()[tensor];
    if (stored.dtype != DType::u8 || stored.size_bytes() > kLongestState_bytes)
      throw wrong(matrix, "has a quant_state that is no short text");
    std::string text(stored.size_bytes(), '\0');
    source_.read(tensor, 0, text.size(), std::as_writable_bytes(std::span(text.data(), text.size())), nullptr);
    auto json = parse_json_or_discard(text, matrix);
    if (!json.is_object()) throw wrong(matrix, "has a quant_state that is no JSON object");
    return json;
  }

  StoredNf4 read(const std::string& matrix, std::size_t state_tensor) const {
    const auto json = state(matrix, state_tensor);
    StoredNf4 stored;
    try {
      const auto require = [&](const char* field, const nlohmann::json& value) {
        if (json.at(field) != value)
          throw wrong(matrix,
                      fmt::format("has {} {}, {} can be read", field, json_text(json.at(field)), json_text(value)));
      };
      require("quant_type", "nf4");
      require("blocksize", kernels::kNf4Block);
      stored.dtype = dtype_from_torch(json.at("dtype").get<std::string>());
      stored.shape = json.at("shape").get<Shape>();
      if (json.contains("nested_offset")) {
        require("nested_blocksize", kernels::kEightBitBlock);
        require("nested_dtype", "float32");
        stored.nested_offset = json.at("nested_offset").get<float>();
        stored.nested_absmax = part(matrix, ".nested_absmax");
      }
    } catch (const nlohmann::json::exception& error) {
      throw wrong(matrix, std::string("has a quant_state that cannot be read: ") + error.what());
    }
    stored.codes = part(matrix, "");
    stored.absmax = part(matrix, ".absmax");
    check(matrix, stored);
    return stored;
  }

  void check(const std::string& matrix, const StoredNf4& stored) const {
    const auto& [rows_columns, dtype] = std::tie(stored.shape, stored.dtype);
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (rows_columns.size() != 2 || rows_columns[0] < 1 || rows_columns[1] < 1 || rows_columns[0] > kMost ||
        rows_columns[1] > kMost / rows_columns[0] || !is_float(dtype))
      throw wrong(matrix, fmt::format("is a {} tensor of shape [{}], a matrix was expected", torch_name(dtype),
                                      fmt::join(rows_columns, ", ")));
    const auto n = rows_columns[0] * rows_columns[1], blocks = parts_of(n, kernels::kNf4Block);
    const auto& codes = source_.tensors()[stored.codes];
    // quant_storage: the bytes may be stored as a wider type.
    const std::int64_t item = dtype_size_bytes(codes.dtype);
    if (static_cast<std::int64_t>(codes.size_bytes()) != parts_of(parts_of(n, 2), item) * item || item > 8)
      throw wrong(matrix, fmt::format("has {} bytes of codes, {} were expected for a matrix of shape [{}]",
                                      codes.size_bytes(), parts_of(n, 2), fmt::join(rows_columns, ", ")));
    expect(matrix, stored.absmax, stored.nested_absmax ? DType::u8 : DType::f32, blocks);
    if (stored.nested_absmax)
      expect(matrix, *stored.nested_absmax, DType::f32, parts_of(blocks, kernels::kEightBitBlock));
    check_code(matrix);
  }

  /// Checks that the code is NF4: another code would give other numbers for the same bytes.
  void check_code(const std::string& matrix) const {
    const auto map = part(matrix, ".quant_map");
    expect(matrix, map, DType::f32, std::ssize(kernels::kNf4Code));
    std::array<float, kernels::kNf4Code.size()> code{};
    source_.read(map, 0, code.size(), std::as_writable_bytes(std::span(code)), nullptr);
    constexpr float kRounding = 1e-6f;
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (!(std::abs(code[i] - kernels::kNf4Code[i]) < kRounding))
        throw wrong(matrix, fmt::format("has another code: its quant_map begins otherwise at {}", i));
    }
  }

  const Source& source_;
  std::map<std::string, std::size_t> numbers_;
};

/// The presence of a tensor X + `mark` shows that X + `codes` holds codes.
struct Telltale {
  std::string_view mark, codes, method;
};

constexpr std::array<Telltale, 19> kTelltales{{{".weight_scale_inv", ".weight", "fp8"},
                                               {".weight_scale", ".weight", "fp8 or compressed-tensors"},
                                               {".scale_weight", ".weight", "fp8"},
                                               {".scale_inv", ".weight", "fp8"},
                                               {".scale", ".weight", "fp8"},
                                               {".SCB", ".weight", "bitsandbytes in 8 bits"},
                                               {".weight.SCB", ".weight", "bitsandbytes in 8 bits"},
                                               {".qzeros", ".qweight", "gptq or awq"},
                                               {".scales", ".qweight", "gptq or awq"},
                                               {".weight_scale", ".weight_packed", "compressed-tensors"},
                                               {".scales", ".weight", "mlx or eetq"},
                                               {".weight_scales", ".weight", "eetq"},
                                               {".codebooks", ".codes", "aqlm"},
                                               {".weight._scale", ".weight._data", "quanto"},
                                               {".meta", ".W_q", "hqq"},
                                               {"_scales", "_blocks", "mxfp4"},
                                               {"_scale", "_qdata", "torchao"},
                                               {"_scale_inv", "", "fp8"},
                                               {"_scale", "", "fp8"}}};

/// True for a dtype that can hold codes. In a wider floating-point type weights are numbers, and a tensor that is named
/// like a scale is something else.
bool can_be_codes(DType dtype) { return !is_float(dtype) || dtype_size_bytes(dtype) == 1; }

}  // namespace

std::map<std::string, StoredNf4> find_stored_nf4(const Source& source) { return Finder(source).find(); }

std::map<std::string, StoredFp8> find_stored_fp8(const Source& source) {
  constexpr std::string_view scale = "_scale_inv";
  constexpr std::int64_t largest_block = 1 << 20;
  const auto file = source.info().directory / "config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return {};
  const auto config = parse_json_or_discard(read_text_file(file, 1u << 20), file.string());
  const auto quantization = config.is_object() ? config.value("quantization_config", nlohmann::json()) : config;
  if (!quantization.is_object() || quantization.value("quant_method", nlohmann::json()) != "fp8") return {};
  const auto sizes = quantization.value("weight_block_size", nlohmann::json());
  if (!sizes.is_array() || sizes.size() != 2) return {};
  StoredFp8 block;
  for (const auto& [number, place] : {std::pair(sizes[0], &block.block_rows), std::pair(sizes[1], &block.block_cols)}) {
    if (!number.is_number_unsigned() || number == 0 || number > largest_block)
      throw FormatError(file.string() + ": weight_block_size is no size of a block");
    *place = number.get<std::int64_t>();
  }
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) numbers.emplace(source.tensors()[i].name, i);
  std::map<std::string, StoredFp8> found;
  for (const auto& [name, number] : numbers) {
    if (!name.ends_with(scale)) continue;
    const auto matrix = numbers.find(name.substr(0, name.size() - scale.size()));
    if (matrix == numbers.end() || source.tensors()[matrix->second].dtype != DType::f8_e4m3fn) continue;
    const auto& codes = source.tensors()[matrix->second];
    const auto& scales = source.tensors()[number];
    const bool fits =
        codes.shape.size() == 2 && scales.dtype == DType::f32 &&
        scales.shape == Shape{parts_of(codes.shape[0], block.block_rows), parts_of(codes.shape[1], block.block_cols)};
    if (!fits)
      throw FormatError(fmt::format("{}: '{}' of shape [{}] does not fit '{}' of shape [{}] in blocks of {} x {}",
                                    source.info().directory.string(), scales.name, fmt::join(scales.shape, ", "),
                                    codes.name, fmt::join(codes.shape, ", "), block.block_rows, block.block_cols));
    block.codes = matrix->second;
    block.scales = number;
    found.emplace(codes.name, block);
  }
  return found;
}

bool is_part_of(const std::map<std::string, StoredNf4>& found, const std::string& name) {
  if (const auto at = name.find(kState); at != std::string::npos) return found.contains(name.substr(0, at));
  return std::any_of(kParts.begin(), kParts.end(), [&](std::string_view part) {
    return name.ends_with(part) && found.contains(name.substr(0, name.size() - part.size()));
  });
}

bool is_nf4_state(const std::string& name) {
  constexpr std::string_view kType = "nf4";
  return name.ends_with(kType) && std::string_view(name).substr(0, name.size() - kType.size()).ends_with(kState);
}

void refuse_other_quantization(const Source& source) {
  stored_quantization(source.info().directory);
  std::unordered_map<std::string, const SourceTensor*> tensors;
  for (const auto& tensor : source.tensors()) tensors.emplace(tensor.name, &tensor);
  for (const auto& tensor : source.tensors()) {
    for (const auto& [mark, codes, method] : kTelltales) {
      if (!tensor.name.ends_with(mark)) continue;
      const auto name = tensor.name.substr(0, tensor.name.size() - mark.size()) + std::string(codes);
      const auto found = tensors.find(name);
      if (found == tensors.end() || !can_be_codes(found->second->dtype)) continue;
      throw FormatError(fmt::format(
          "{}: '{}' is in {} beside '{}': weights quantised by {}, which cannot be read as numbers; nf4 in 4 bits by "
          "bitsandbytes can. Give the model as it was before",
          source.info().named_file().string(), name, torch_name(found->second->dtype), tensor.name, method));
    }
  }
}

}  // namespace fsdp
