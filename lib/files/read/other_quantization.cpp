#include "lib/files/read/other_quantization.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <unordered_map>

#include "lib/base/error.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {
namespace {

/// A tensor X + `mark` tells that X + `codes` holds codes.
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

/// In one of these a model's weights are codes; in a wider one they are numbers, and what is called a scale is another.
bool can_be_codes(DType dtype) { return !is_float(dtype) || dtype_size_bytes(dtype) == 1; }

}  // namespace

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
      const auto& at = source.info().files.empty() ? source.info().directory : source.info().files.front();
      throw FormatError(fmt::format(
          "{}: '{}' is in {} beside '{}': weights quantised by {}, which cannot be read as numbers; nf4 in 4 bits by "
          "bitsandbytes can. Give the model as it was before",
          at.string(), name, torch_name(found->second->dtype), tensor.name, method));
    }
  }
}

}  // namespace fsdp
