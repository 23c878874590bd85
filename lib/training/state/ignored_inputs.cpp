#include "lib/training/state/ignored_inputs.hpp"

#include <set>
#include <string>
#include <vector>

#include "lib/checkpoints/model/unused_keys.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/transform/model_tensors.hpp"
#include "lib/checkpoints/transform/tracked_source.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

namespace fsdp {
namespace {

void add_tokenizer_files(std::set<std::string>& used, const std::filesystem::path& directory) {
  used.insert({"chat_template.jinja", "additional_chat_templates"});
  for (const auto& file : tokenizer_files(directory)) used.insert(file.filename().string());
}

}  // namespace

Ignored ignored_in_model(const std::filesystem::path& directory, bool tokenizer) {
  auto ignored = ignored_in_config(directory);
  const auto source = open_weights(directory);
  std::vector<std::string> buffers;
  for (const auto& tensor : source->tensors())
    if (is_known_buffer(tensor.name)) buffers.push_back(tensor.name);
  ignored.add(directory.string(), buffers);
  auto used = files_read(source->info());
  if (tokenizer) add_tokenizer_files(used, directory);
  ignored.add_files(directory, used);
  return ignored;
}

Ignored ignored_in_adapter(const std::filesystem::path& directory) {
  auto ignored = ignored_in_adapter_config(directory);
  if (ignored.empty() && !has_adapter(directory)) return ignored;  // a checkpoint of a run
  std::set<std::string> used{kAdapterConfig};
  used.insert(std::filesystem::exists(directory / kAdapterWeights) ? kAdapterWeights : kAdapterPickle);
  add_tokenizer_files(used, directory);
  ignored.add_files(directory, used);
  return ignored;
}

}  // namespace fsdp
