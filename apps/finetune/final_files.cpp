#include "apps/finetune/final_files.hpp"

#include <fmt/format.h>

#include "apps/finetune/final_exports.hpp"
#include "lib/base/files/file.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/state/adapter_files.hpp"

namespace fsdp::detail {

bool FinalFiles::export_files(bool is_saved) {
  auto checkpoint = is_saved ? last_checkpoint() : std::filesystem::path();
  if (context_.setup.options.validation.ends_with_best) {
    const auto best = load_best(context_);
    if (best) checkpoint = *best;
    exported_ = best ? "best" : "last";
    write_adapter();
  }
  return FinalExports(context_, [this] { return clock_.signalled(); }).write(checkpoint);
}

void FinalFiles::write_adapter() {
  const auto& options = context_.setup.options;
  if (!context_.runtime.has_adapters() || !record_.is_open()) return;
  const auto base = options.model.model == "mingpt" ? context_.runtime.base().directory : options.model.model;
  for (const auto& directory :
       {context_.setup.directory / "adapter", std::filesystem::path(options.save_final_adapter)}) {
    if (directory.empty()) continue;
    save_adapter(context_.runtime, directory, base);
    const bool has_template = save_tokenizer(directory);
    if (!has_template || !context_.setup.template_text.empty()) save_template(directory / "chat_template.jinja");
    context_.log.info(fmt::format("adapter   {}", directory.string()));
  }
}

/// Writes the run's tokenizer beside its adapter, where merges look for it, unless it is the base's.
/// \return whether a chat template of the tokenizer came along
bool FinalFiles::save_tokenizer(const std::filesystem::path& directory) {
  const auto& name = context_.setup.tokenizer.name;
  std::error_code error;
  if (name.empty() || name == kBuiltInTokenizer ||
      std::filesystem::equivalent(name, context_.runtime.base().directory, error))
    return false;
  run_agreed(context_.world, [&] {
    if (context_.world.rank() == 0) copy_tokenizer(name, directory);
  });
  return std::filesystem::is_regular_file(std::filesystem::path(name) / "chat_template.jinja", error);
}

/// Writes the run's chat template beside its adapter, where merges look for it.
void FinalFiles::save_template(const std::filesystem::path& file) {
  const auto& text = context_.setup.template_text;
  run_agreed(context_.world, [&] {
    if (context_.world.rank() == 0 && !text.empty()) replace_file(file, text);
  });
  std::error_code error;
  if (text.empty() && std::filesystem::exists(file, error))
    context_.log.warning(file.string() + " was there before this adapter, and merges of it take this template");
}

}  // namespace fsdp::detail
