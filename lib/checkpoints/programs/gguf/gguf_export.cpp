#include "lib/checkpoints/programs/gguf/gguf_export.hpp"

#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/gguf/gguf_model.hpp"
#include "lib/checkpoints/programs/gguf/gguf_target.hpp"
#include "lib/checkpoints/programs/hf/hf_export.hpp"
#include "lib/models/config/family.hpp"
#include "lib/tokenizers/gguf/vocabulary_for_gguf.hpp"

namespace fsdp {

void adapt_to_gguf(const Source& original, const Conversion& /*options*/, SourceChanges& changes, const Logger& log) {
  keep_model_alone(original, log, changes, "gguf holds a model only");
  changes.dtype = changes.merge_adapter.empty() || !changes.dtype ? std::nullopt : std::optional(DType::f32);
}

std::unique_ptr<Target> make_gguf_target(WriteRequest& request) {
  const auto& options = request.options;
  const auto& original = request.original;
  const auto& log = request.log;
  auto& source = request.source;
  auto hf = carried_beside(options, original);
  const auto known = known_model(original, options.changes);
  auto file = config_of(hf);
  if (!known && !file)
    throw RequestError(options.input + ": no config.json is known, which has the model's sizes", Remedy::config_json);
  const auto config =
      config_after_merge(known ? *known : model_config_from_json(file->json, file->name), *source, options.changes);
  add_tokenizer(hf, config, original, *source, options, log);
  const auto directory = tokenizer_directory(hf);
  if (!file && directory && !directory->empty()) {
    hf.carry_from.push_back(*directory);
    file = config_of(hf);
  }
  const auto type = options.gguf_type ? *options.gguf_type : gguf_type_of(*source);
  source = gguf_model(std::move(source), config, type);
  std::optional<GgufVocabulary> vocabulary;
  if (directory) {
    vocabulary = make_gguf_vocabulary(*directory, file ? file->json : hf_config(config),
                                      {.num_rows = config.vocab_size,
                                       .takes_sentencepiece = facts_of(config).takes_sentencepiece,
                                       .pre = options.pre_tokenizer});
    if (auto text = trained_template(options, original, log); !text.empty())
      vocabulary->templates = {{"default", std::move(text)}};
    if (!vocabulary->remark.empty()) log.warning(vocabulary->remark);
  }
  return std::make_unique<GgufTarget>(options.output,
                                      gguf_entries(*source, config, type, options.output.stem().string(), vocabulary));
}

}  // namespace fsdp
