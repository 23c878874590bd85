#include "lib/training/run/restart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/state/checkpoint.hpp"
#include "lib/training/state/model_sizes.hpp"

namespace fsdp {
namespace {

/// Weights that cannot be read are told before anything is counted or claimed.
ModelConfig readable_model(const std::filesystem::path& directory) {
  stored_quantization(directory);
  return read_model_config(directory);
}

RequestedModel model_wish(const ModelOptions& options) {
  RequestedModel wish;
  if (!options.directory.empty()) wish.config = readable_model(options.directory);
  const std::map<std::string, std::int64_t> sizes{{"num-layers", options.num_layers},
                                                  {"num-heads", options.num_heads},
                                                  {"embed-size", options.embed_size},
                                                  {"ffn-hidden-size", options.ffn_hidden_size},
                                                  {"vocab-size", options.vocab_size}};
  for (const auto& name : options.given_sizes) {
    const auto size = sizes.find(name);
    if (size == sizes.end() || (name == "ffn-hidden-size" && size->second == 0)) continue;
    wish.sizes.insert(*size);
  }
  return wish;
}

}  // namespace

void leave_checkpoint(ProcessGroup& world, RestartPoint& point, const std::string& problem, const Logger& log) {
  if (world.rank() == 0)
    log.warning(fmt::format("{} cannot be used: {}{}", point.candidates.front().string(), problem,
                            point.candidates.size() > 1 ? "; trying the checkpoint before" : ""));
  point.problems.push_back(problem);
  point.candidates.erase(point.candidates.begin());
}

void take_first_usable(ProcessGroup& world, RestartPoint& point, const Logger& log) {
  while (!point.candidates.empty()) {
    const auto open = [&] {
      point.checkpoint = open_checkpoint(point.candidates.front(), point.ours_only, point.model);
    };
    std::string problem;
    if (point.candidates.size() == 1) {
      run_agreed(world, open);
    } else {
      try {
        open();
      } catch (const Error& error) {
        problem = error.what();
      }
    }
    const auto found = first_problem(world, problem);
    if (!found) {
      point.is_ours = point.checkpoint->is_ours();
      point.knows_run = point.checkpoint->run().has_value();
      point.manifest = point.checkpoint->run().value_or(RunManifest());
      log.warnings_of_all(point.checkpoint->source().info().remarks);
      return;
    }
    leave_checkpoint(world, point, found->text, log);
  }
  throw FormatError("no usable checkpoint is left");
}

std::optional<RestartPoint> find_restart(ProcessGroup& world, const TrainOptions& options,
                                         const std::filesystem::path& checkpoints, const Logger& log) {
  if (options.restart_checkpoint.empty()) return std::nullopt;
  // Rank 0 decides; the others might see a shared file system a moment later.
  const auto text = text_of_root(world, [&] {
    std::string lines;
    for (const auto& path : checkpoint_candidates(options.restart_checkpoint, checkpoints))
      lines += path.string() + '\n';
    return lines;
  });
  if (const auto remark = remark_of_newest(options.restart_checkpoint); !remark.empty() && world.rank() == 0)
    log.warning(remark);
  RestartPoint point;
  point.ours_only = names_latest(options.restart_checkpoint);
  point.model = options.model.directory;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    point.candidates.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  take_first_usable(world, point, log);
  return point;
}

ModelConfig plan_model(const TrainOptions& options, const std::optional<RestartPoint>& restart) {
  ModelConfig config;
  const auto& wish = options.model;
  if (restart && !restart->knows_run) {
    config = model_of_tensors(*restart->checkpoint, model_wish(wish));
  } else if (restart) {
    config = restart->manifest.config;
  } else if (wish.model == "mingpt") {
    config.num_layers = wish.num_layers;
    config.num_heads = wish.num_heads;
    config.embed_size = wish.embed_size;
    config.ffn_hidden_size = wish.ffn_hidden_size != 0 ? wish.ffn_hidden_size : 4 * wish.embed_size;
    config.vocab_size = wish.vocab_size;
    config.block_size = wish.seq_len == 0 ? 256 : wish.seq_len;
  } else {
    config = readable_model(wish.directory);
  }
  finish_model(config, wish);
  return config;
}

void finish_model(ModelConfig& config, const ModelOptions& wish) {
  config.dropout = wish.dropout;
  config.validate();
  if (const auto longest = longest_row(config); wish.seq_len > longest) {
    throw RequestError(fmt::format("{} tokens are longer than the {} positions of the model", wish.seq_len, longest),
                       Remedy::of_seq_len);
  }
}

GrownTokenizer plan_new_tokens(const ModelOptions& options, const std::string& tokenizer, ModelConfig& config,
                               LoraConfig& lora) {
  auto grown = grow_tokenizer(tokenizer, read_new_tokens(options.add_tokens));
  const auto before = config.vocab_size;
  for (const auto& token : grown.added) config.vocab_size = std::max<std::int64_t>(config.vocab_size, token.id + 1);
  const auto multiple = options.pad_vocabulary;
  config.vocab_size = (config.vocab_size + multiple - 1) / multiple * multiple;
  if (lora.enabled() && config.vocab_size != before) lora.vocabulary = config.vocab_size;
  for (auto& [module, ids] : lora.token_rows) {
    if (std::erase(ids, kNewTokens) == 0) continue;
    for (const auto& token : grown.added) ids.push_back(token.id);
  }
  return grown;
}

void refuse_new_tokens(const LoraConfig& lora) {
  for (const auto& [module, ids] : lora.token_rows) {
    if (std::find(ids.begin(), ids.end(), kNewTokens) != ids.end())
      throw RequestError("the new tokens are to be trained, and there are none", Remedy::of_new_tokens);
  }
}

}  // namespace fsdp
