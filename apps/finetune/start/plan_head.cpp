#include "apps/finetune/start/plan_head.hpp"

#include <fmt/format.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/encoding/labels.hpp"
#include "lib/models/config/score_head.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/head_targets.hpp"
#include "lib/training/data/prepare_data.hpp"

namespace fsdp::detail {
namespace {

/// The labels in the first source of the training data: those of other sources are checked as they are encoded.
std::vector<std::string> labels_of_data(const TrainOptions& options, const std::function<bool()>& stop_wanted) {
  if (options.sources.empty())
    throw UsageError("--head classify gives the model a new head, for labels that --labels or --train-data name");
  const auto& source = options.sources.front();
  const auto field = source.field.empty() ? options.data_field : source.field;
  if (!is_token_file(source.path, asked_column(field, DataForm::label)))
    return find_labels({source.path}, field, stop_wanted);
  return open_token_file(source.path)->notes().labels;
}

}  // namespace

void check_own_head(const ModelConfig& config, const TrainOptions& options) {
  const auto& own = config.labels;
  const auto& asked = options.conversations.labels;
  const bool is_reward = head_of(config) == HeadKind::reward;
  switch (options.objective.head) {
    case HeadKind::next_token:
      throw UsageError(is_reward
                           ? "the model gives a text one number: train it by --head reward"
                           : "the model is a classifier, of " + list_of_labels(own) + ": train it by --head classify");
    case HeadKind::reward:
      if (!is_reward) throw UsageError("--head reward, and the model is a classifier, of " + list_of_labels(own));
      return;
    case HeadKind::classify:
      if (is_reward) throw UsageError("--head classify, and the model gives a text one number, a reward");
      if (!asked.empty() && asked != own)
        throw UsageError("--labels names " + list_of_labels(asked) + ", and the model has " + list_of_labels(own));
  }
}

void plan_head(ProcessGroup& world, RunSetup& setup, const Logger& log, const std::function<bool()>& stop_wanted) {
  const auto& options = setup.options;
  const bool has_own = setup.config.has_scores();
  if (has_own) check_own_head(setup.config, options);
  if (!options.objective.has_scores()) return;
  const auto padding = padding_of_texts(setup.config, setup.tokenizer.name, setup.tokenizer.tokenizer.get());
  if (has_own) {
    setup.config.pad_token_id = padding;
    return;
  }
  if (setup.restart)
    throw UsageError(
        "--head gives a new head to the weights in a folder, and a checkpoint goes on with its own: "
        "convert it by fsdp-ckpt-convert --to hf, and name the result by --model");
  auto labels = unnamed_labels(1);
  if (options.objective.head == HeadKind::classify) {
    labels = options.conversations.labels;
    if (labels.empty()) {
      const auto found = text_of_root(world, [&] { return json_text(labels_of_data(options, stop_wanted)); });
      labels = nlohmann::json::parse(found).get<std::vector<std::string>>();
    }
    if (labels.size() < 2)
      throw UsageError(labels.empty() ? "--train-data names no labels: give --labels"
                                      : "--head classify tells labels apart, and there is one (blanks part those of "
                                        "--labels): " +
                                            labels.front());
    if (std::ssize(labels) > setup.config.vocab_size)
      throw UsageError(fmt::format("{} labels, and there can be as many as the model has tokens, {}", labels.size(),
                                   setup.config.vocab_size));
    log.info(fmt::format("labels    {}: {}", labels.size(), list_of_labels(labels)));
  }
  add_score_head(setup.config, std::move(labels), padding);
}

}  // namespace fsdp::detail
