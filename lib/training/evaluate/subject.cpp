#include "lib/training/evaluate/subject.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/model/adapter_plan.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/score_head.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/state/checkpoint.hpp"
#include "lib/training/state/ignored_inputs.hpp"
#include "lib/training/state/load/load.hpp"
#include "lib/training/state/model_sizes.hpp"

namespace fsdp {
namespace {

EvaluationSubject open_model(const std::filesystem::path& path, const std::string& model_config) {
  std::error_code error;
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name, error); };
  EvaluationSubject subject;
  subject.path = path;
  if (model_config.empty() && has("config.json") && !has("run.json") && !has(".metadata")) {
    subject.config = read_model_config(path);
    subject.quantize = stored_quantization(path).value_or(QuantizeConfig());
    subject.remarks = adapter_left_out(path);
    return subject;
  }
  if (!has("run.json") && !has(".metadata")) refuse_adapter_alone(path);
  subject.checkpoint = open_checkpoint(path, false, model_config);
  subject.remarks = subject.checkpoint->source().info().remarks;
  if (const auto& run = subject.checkpoint->run()) {
    subject.config = run->config;
    const auto& data = run->data;
    if (subject.checkpoint->has_adapters_only()) {
      subject.lora = adapter_config_from_json(data.at("adapter"), path.string()).lora;
      take_vocabulary(data, subject.lora);
      if (data.contains("quantize")) subject.quantize = quantization_from_json(data["quantize"], path.string());
      subject.base = {data.value("weights", std::string()), data.value("weights_hash", std::string())};
    }
    subject.chat_template = text_of_run(data, "chat_template");
    return subject;
  }
  RequestedModel wish;
  if (!model_config.empty()) wish.config = read_model_config(model_config);
  subject.config = model_of_tensors(*subject.checkpoint, wish);
  return subject;
}

/// \param given  by the user; empty: the one that belongs to the subject
void choose_tokenizer(EvaluationSubject& subject, const std::string& given) {
  subject.tokenizer_name = given;
  if (!given.empty()) return;
  const auto run = subject.checkpoint != nullptr ? subject.checkpoint->run() : std::nullopt;
  const auto own = tokenizer_of(subject.path, run ? run->data : nlohmann::json(), subject.adapter);
  subject.tokenizer_name = own.name;
  if (!own.gone.empty())
    subject.tokenizer_remark = fmt::format(" (its run used {}, where there is none now)", own.gone);
  if (own.name.empty() && own.gone.empty() && facts_of(subject.config).has_built_in_tokenizer)
    subject.tokenizer_name = kBuiltInTokenizer;
}

}  // namespace

EvaluationSubject open_subject(const std::filesystem::path& given, const std::string& model_config,
                               const std::string& tokenizer) {
  const auto path = checkpoint_in_run(given);
  auto subject = open_model(path, model_config);
  if (const auto remark = remark_of_newest(given); !remark.empty()) subject.remarks.push_back(remark);
  subject.config.dropout = 0;
  choose_tokenizer(subject, tokenizer);
  return subject;
}

void add_adapter(EvaluationSubject& subject, const std::filesystem::path& adapter, const std::string& tokenizer) {
  if (subject.lora.enabled())
    throw RequestError(
        fmt::format("adapter {}: the checkpoint {} has adapters of its own", adapter.string(), subject.path.string()));
  if (subject.checkpoint != nullptr)
    throw RequestError(fmt::format("an adapter is for a folder of weights, {} is a checkpoint", subject.path.string()));
  if (const auto scores = subject.config.has_scores() ? 0 : scores_of_adapter(adapter); scores > 0)
    add_score_head(subject.config, unnamed_labels(scores), subject.config.pad_token_id);
  auto plan = plan_adapter_of_model(adapter, subject.config, subject.quantize);
  subject.lora = std::move(plan.lora);
  if (subject.lora.vocabulary > 0) subject.config.vocab_size = subject.lora.vocabulary;
  subject.remarks = std::move(plan.remarks);  // nothing is left out now
  subject.adapter = adapter;
  subject.chat_template = chat_template_of_adapter(adapter);
  choose_tokenizer(subject, tokenizer);
}

void open_subject_tokenizer(EvaluationSubject& subject, const std::string& what) {
  if (subject.tokenizer != nullptr) return;
  if (subject.tokenizer_name.empty()) {
    throw RequestError(fmt::format("{} needs a tokenizer, and none is known for {}{}", what, subject.path.string(),
                                   subject.tokenizer_remark),
                       Remedy::give_tokenizer);
  }
  auto tokenizer = open_tokenizer(subject.tokenizer_name);
  check_vocabulary(*tokenizer, subject.tokenizer_name, subject.config);
  subject.tokenizer = std::move(tokenizer);
}

void load_subject(ModelRuntime& runtime, EvaluationSubject& subject) {
  if (subject.checkpoint == nullptr) {
    load_weights(runtime, subject.path);
    if (subject.lora.enabled()) load_adapter(runtime, subject.adapter);
    run_agreed(runtime.world(), [&] {
      if (runtime.world().rank() != 0) return;
      subject.ignored = ignored_in_model(subject.path, subject.tokenizer_name == subject.path);
      if (!subject.adapter.empty()) subject.ignored.add(ignored_in_adapter(subject.adapter));
    });
  } else {
    if (subject.lora.enabled()) load_base(runtime, subject.base, subject.path);
    load_checkpoint(runtime, nullptr, *subject.checkpoint);
    subject.ignored = subject.checkpoint->ignored(runtime.world());
    subject.checkpoint.reset();
  }
}

}  // namespace fsdp
