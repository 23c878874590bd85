#include "lib/checkpoints/programs/gguf/gguf_target.hpp"

#include <string>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {

Layout GgufTarget::plan(const Source& source) {
  if (!source.values().empty())
    throw RequestError("\"" + source.values().front().name + "\" is no tensor: a GGUF file holds a model only",
                       Remedy::model_only);
  std::vector<GgufItem> items;
  for (const auto& tensor : source.tensors()) {
    const auto* type = tensor.other ? find_gguf_type(tensor.other->name) : find_gguf_type(tensor.dtype);
    if (type == nullptr)
      throw RequestError("tensor \"" + tensor.name + "\" is of type " +
                         (tensor.other ? tensor.other->name : std::string(torch_name(tensor.dtype))) +
                         ", which GGUF cannot hold");
    items.push_back({.name = tensor.name, .type = type, .shape = tensor.other ? tensor.other->shape : tensor.shape});
  }
  auto plan = plan_gguf(items, entries_);
  Layout layout;
  layout.files.push_back({name_, plan.size_bytes});
  layout.literals.push_back({0, 0, std::move(plan.head)});
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto count = element_count(source.tensors()[i].shape);
    layout.segments.push_back({.offset_bytes = plan.offsets[i], .tensor = i, .count = count});
  }
  return layout;
}

}  // namespace fsdp
