#include "lib/files/write/safetensors_target.hpp"

#include <algorithm>
#include <numeric>

#include "lib/base/error.hpp"
#include "lib/files/formats/safetensors.hpp"
#include "lib/files/write/value_json.hpp"

namespace fsdp {
namespace detail {

void add_safetensors_file(Layout& layout, const std::filesystem::path& name, const Source& source,
                          std::span<const std::size_t> tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> items;
  for (const auto number : tensors) {
    const auto& tensor = source.tensors()[number];
    items.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.other});
  }
  auto plan = plan_safetensors(items, metadata);
  const auto file = layout.files.size();
  layout.files.push_back({name, plan.size_bytes});
  layout.literals.push_back({file, 0, std::move(plan.head)});
  const auto first_segment = layout.segments.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto count = static_cast<std::uint64_t>(num_elements(items[i].shape));
    layout.segments.push_back({file, plan.offsets[i], tensors[i], 0, count});
  }
  std::stable_sort(layout.segments.begin() + static_cast<std::ptrdiff_t>(first_segment), layout.segments.end(),
                   [](const auto& a, const auto& b) { return a.offset_bytes < b.offset_bytes; });
}

std::map<std::string, std::string> carried_metadata(const Source& source) {
  auto metadata = source.info().metadata;
  std::erase_if(metadata, [](const auto& item) { return item.first.starts_with("DCP_"); });
  metadata["format"] = "pt";
  return metadata;
}

void add_known_file(Layout& layout, const std::filesystem::path& name, std::string bytes) {
  layout.files.push_back({name, bytes.size()});
  layout.literals.push_back({layout.files.size() - 1, 0, std::move(bytes)});
}

}  // namespace detail

Layout SafetensorsTarget::plan(const Source& source) {
  Layout layout;
  std::vector<std::size_t> all(source.tensors().size());
  std::iota(all.begin(), all.end(), 0);
  detail::add_safetensors_file(layout, name_, source, all, detail::carried_metadata(source));
  if (auto values = values_to_json(source); !values.empty()) {
    auto beside = name_;
    beside.replace_extension(".json");
    if (beside == name_)
      throw UsageError(name_.string() + ": the python values go to a file of this name; give the " +
                       "output the suffix .safetensors");
    detail::add_known_file(layout, beside, std::move(values));
  }
  return layout;
}

}  // namespace fsdp
