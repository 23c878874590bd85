#include "lib/checkpoint/restart.hpp"

#include <fmt/format.h>

#include "lib/base/error.hpp"
#include "lib/checkpoint/import_model.hpp"
#include "lib/checkpoint/load.hpp"
#include "lib/mpi/agree.hpp"

namespace fsdp {
namespace {

ModelWish model_wish(const ModelOptions& options) {
  ModelWish wish;
  if (!options.directory.empty()) wish.config = read_model_config(options.directory);
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

bool agree_on_checkpoint(ProcessGroup& world, const std::string& problem, const std::filesystem::path& checkpoint,
                         bool older_exist, const Logger& log) {
  const auto found = first_problem(world, problem);
  if (!found) return true;
  if (world.rank() == 0) {
    log.warning(fmt::format("{} cannot be used: {}{}", checkpoint.string(), found->text,
                            older_exist ? "; trying the checkpoint before" : ""));
  }
  return false;
}

void take_first_usable(ProcessGroup& world, RestartPoint& point, const Logger& log) {
  while (!point.candidates.empty()) {
    const auto& path = point.candidates.front();
    std::string problem;
    try {
      auto opened = open_checkpoint(path, point.ours_only);
      point.manifest = std::move(opened.manifest);
      point.external = std::move(opened.external);
    } catch (const Error& error) {
      problem = error.what();
      if (point.candidates.size() == 1) throw;
    }
    if (agree_on_checkpoint(world, problem, path, point.candidates.size() > 1, log)) return;
    point.candidates.erase(point.candidates.begin());
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
  RestartPoint point;
  point.ours_only = names_latest(options.restart_checkpoint);
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
  if (restart && !restart->knows_run()) {
    config = external_model(*restart->external, model_wish(wish));
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
    config = read_model_config(wish.directory);
  }
  config.dropout = wish.dropout;
  config.validate();
  if (wish.seq_len > config.block_size) {
    throw UsageError(
        fmt::format("--seq-len {} is longer than the {} positions of the model", wish.seq_len, config.block_size));
  }
  return config;
}

}  // namespace fsdp
