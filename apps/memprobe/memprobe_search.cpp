#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <utility>

#include "apps/memprobe/memprobe_job.hpp"
#include "apps/memprobe/run_cost.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/training/data/prepare_data.hpp"
#include "lib/training/data/training_data.hpp"

namespace fsdp::detail {

std::int64_t needed_bytes(const MemoryPrediction& prediction) {
  return prediction.on_gpu ? prediction.total_bytes() : prediction.host.peak_bytes();
}

bool fits_budget(const MemoryPrediction& prediction, const MemoryBudget& budget) {
  return budget.gpu ? prediction.fits() : needed_bytes(prediction) + budget.margin_bytes <= budget.host_bytes;
}

std::int64_t headroom(const MemoryPrediction& prediction, const MemoryBudget& budget) {
  if (!budget.gpu) return budget.host_bytes - budget.margin_bytes - needed_bytes(prediction);
  return allocator_capacity(*budget.gpu, prediction.overheads) - budget.margin_bytes - prediction.profile.peak_bytes;
}

std::optional<TrainingData> open_token_files(const TrainOptions& options, const ModelConfig& config, bool on_gpu) {
  const auto asked = parse_data_sources(options.train_data);
  for (const auto& source : asked) {
    std::error_code error;
    // ORG/NAME of the hub's cache may be texts, whose lengths are not known here either.
    const bool is_name = std::ranges::count(source.path, '/') == 1 && !source.path.starts_with('/');
    if (!is_name && !std::filesystem::exists(source.path, error))
      throw MissingInput("--train-data " + source.path + ": No such file or directory");
  }
  const auto column_of = [&](const DataSource& source) {
    return asked_column(source.field.empty() ? options.data_field : source.field,
                        source.form.value_or(options.conversations.form));
  };
  const auto is_token_source = [&](const DataSource& source) { return is_token_file(source.path, column_of(source)); };
  if (asked.empty() || !std::ranges::all_of(asked, is_token_source)) return std::nullopt;
  std::vector<TrainingSource> sources;
  for (const auto& source : asked) {
    TokenLoader rows(source.path, SequenceLimit{options.model.seq_len, row_positions(config, options.model.seq_len)},
                     config.vocab_size, source.max_rows.value_or(options.max_rows),
                     token_file_options(source.layout.value_or(asked_layout(options.stream, options.documents)),
                                        source.token_type ? source.token_type : options.token_type, column_of(source)));
    const auto& objective = options.objective;
    if (rows.has_preferences() != objective.has_preferences() || rows.is_judged() != objective.judges_answers()) {
      throw UsageError("--train-data " + source.path + " holds " +
                       (rows.has_preferences() ? "preferences"
                        : rows.is_judged()     ? "judged answers"
                                               : "texts") +
                       ", and --objective and --head ask for other samples");
    }
    if (on_gpu) rows.pad_to(kGpuLengthStep);
    if (options.pack && !rows.is_stream() && (asked.size() == 1 || rows.has_documents()))
      rows.pack({options.seed, !options.no_shuffle});
    sources.push_back({source.name, source.path, std::move(rows)});
  }
  weigh_sources(asked, options.mix_temperature, sources);
  return TrainingData(std::move(sources), {.end = options.mix_end,
                                           .seed = options.seed,
                                           .shuffle = !options.no_shuffle,
                                           .first_position = 0,
                                           .same_rule = true});
}

std::int64_t tokens_per_sequence(const TrainOptions& options, const ModelConfig& config,
                                 const std::optional<TrainingData>& data) {
  if (data) return data->tokens_per_row();
  const auto& wish = options.model;
  const std::int64_t sides = options.pack && options.objective.has_preferences() ? 2 : 1;
  // Without --seq-len, texts are cut to 512 ids and a model trained from scratch uses all its positions.
  if (wish.seq_len != 0) return sides * wish.seq_len;
  return sides *
         (wish.model == "mingpt" ? config.block_size : std::min(TokenLoader::kDefaultDocumentIds, config.block_size));
}

std::vector<Combination> combinations(const MemprobeOptions& options, int world_size, int world_ranks_per_node) {
  constexpr std::int64_t kMostRanks = 65536;
  const int ranks = options.ranks == 0 ? world_size : options.ranks;
  int per_node = options.ranks_per_node;
  if (per_node == 0) per_node = options.ranks == 0 ? world_ranks_per_node : ranks;
  std::vector<int> sizes;
  for (const int nodes : options.nodes) {
    const auto size = std::int64_t{nodes} * per_node;
    if (size > kMostRanks) {
      throw UsageError(fmt::format("--nodes {} of {} are {}; at most {}", nodes, format_count_of(per_node, "rank"),
                                   format_count_of(size, "rank"), kMostRanks));
    }
    sizes.push_back(static_cast<int>(size));
  }
  if (sizes.empty()) sizes.push_back(ranks);
  std::vector<Combination> all;
  for (const int size : sizes) {
    for (const auto strategy : options.shardings) {
      for (const auto precision : options.precisions) {
        for (const int checkpoint_every : options.checkpointings) {
          all.push_back({strategy, checkpoint_every, precision, size, per_node});
        }
      }
    }
  }
  return all;
}

std::vector<std::int64_t> allowed_batches(const TrainOptions& options, int ranks, std::int64_t most) {
  std::vector<std::int64_t> batches;
  if (options.total_batch_size == 0) {
    for (std::int64_t b = 1; b <= most; ++b) batches.push_back(b);
    return batches;
  }
  if (options.total_batch_size % ranks != 0) {
    throw UsageError("--total-batch-size " + std::to_string(options.total_batch_size) + " cannot be dealt out to " +
                     std::to_string(ranks) + " ranks equally: give a multiple of " + std::to_string(ranks));
  }
  const auto share = options.total_batch_size / ranks;
  for (std::int64_t b = 1; b <= std::min(share, most); ++b) {
    if (share % b == 0) batches.push_back(b);
  }
  return batches;
}

std::int64_t guess_largest(const std::vector<std::int64_t>& batches,
                           const std::function<std::int64_t(std::int64_t)>& room) {
  if (batches.size() < 2) return batches.empty() ? 0 : batches.front();
  // Each further sequence takes nearly the same memory.
  const auto first = static_cast<double>(room(batches[0]));
  const auto grown = first - static_cast<double>(room(batches[1]));
  const auto per_row = std::max(1.0, grown / static_cast<double>(batches[1] - batches[0]));
  return batches[0] + static_cast<std::int64_t>(std::max(0.0, std::min(first / per_row, 1e12)));
}

std::int64_t largest_that_fits(const std::vector<std::int64_t>& batches, std::int64_t guess,
                               const std::function<bool(std::int64_t)>& passes) {
  const auto count = std::ssize(batches);
  const auto at = [&](std::int64_t i) { return element(batches, i); };
  std::int64_t low = -1, high = count;  // at(low) passes, at(high) does not
  std::int64_t next = std::upper_bound(batches.begin(), batches.end(), guess) - batches.begin() - 1;
  // Doubles the stride away from the guess until the limit is enclosed, then bisects.
  for (std::int64_t stride = 1; high - low > 1; stride *= 2) {
    next = std::clamp(next, low + 1, high - 1);
    (passes(at(next)) ? low : high) = next;
    if (high == count) {
      next = low + stride;
    } else if (low < 0) {
      next = high - stride;
    } else {
      next = (low + high) / 2;
    }
  }
  return low < 0 ? 0 : at(low);
}

namespace {

/// Length of the shortest prefix whose repetition gives the pattern.
std::size_t period_of(const std::vector<bool>& pattern) {
  for (std::size_t period = 1; period < pattern.size(); ++period) {
    bool repeats = true;
    for (std::size_t i = period; i < pattern.size() && repeats; ++i) repeats = pattern[i] == pattern[i - period];
    if (repeats) return period;
  }
  return pattern.size();
}

std::int64_t budget_of(const MemoryBudget& budget) { return budget.gpu ? budget.gpu->total_bytes : budget.host_bytes; }

std::string bytes_text(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

nlohmann::json model_json(const ModelAnswer& a, const MemoryBudget& budget) {
  const auto& c = a.combination;
  return {{"sharding", to_string(c.sharding)},
          {"activation_checkpointing", c.checkpointing()},
          {"precision", float_type_name(c.precision)},
          {"ranks", c.ranks},
          {"ranks_per_node", c.ranks_per_node},
          {"fits", a.layers > 0},
          {"largest_layers", a.layers},
          {"largest_parameters", a.parameters},
          {"search_ended", a.layers == kMostLayers},
          {"needed_bytes", needed_bytes(a.prediction)},
          {"budget_bytes", budget_of(budget)},
          {"margin_bytes", budget.margin_bytes},
          {"peak_moment", a.prediction.profile.phase}};
}

/// Optimizers, and those that keep the same moments in 8 bits.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kEightBitOptimizers{
    {{"adamw", "adamw8bit"}, {"lion", "lion8bit"}}};

std::int64_t host_bytes_of_node(const RanksAnswer& a) {
  return a.prediction.host.peak_bytes() * std::min(a.combination.ranks, a.combination.ranks_per_node);
}

int num_levers(const RanksAnswer& answer) { return std::popcount(answer.levers); }

nlohmann::json ranks_answer_json(const RanksAnswer& a, const MemprobeOptions& options, const MemoryBudget& budget) {
  const auto& c = a.combination;
  const auto job = with_levers(options.train, a.levers);
  nlohmann::json json{{"sharding", to_string(c.sharding)},
                      {"activation_checkpointing", c.checkpointing()},
                      {"precision", float_type_name(c.precision)},
                      {"optimizer", job.optimizer.kind},
                      {"offload_optimizer", to_string(job.sharding.offload_optimizer)},
                      {"ranks", c.ranks},
                      {"ranks_per_node", c.ranks_per_node},
                      {"fits", true},
                      {"needed_bytes", needed_bytes(a.prediction)},
                      {"budget_bytes", budget_of(budget)},
                      {"margin_bytes", budget.margin_bytes},
                      {"peak_moment", a.prediction.profile.phase},
                      {"host_node_bytes", host_bytes_of_node(a)}};
  if (a.speed) json["speed"] = speed_json(*a.speed);
  if (const auto cost = run_cost(c, a.speed, options, budget)) json["run"] = to_json(*cost);
  return json;
}

}  // namespace

ModelConfig with_layers(ModelConfig config, std::int64_t layers) {
  config.num_layers = layers;
  auto& sliding = config.traits.sliding;
  if (sliding.empty()) return config;
  const auto period = period_of(sliding);
  std::vector<bool> pattern;
  for (std::size_t i = 0; i < static_cast<std::size_t>(layers); ++i)
    pattern.push_back(i < sliding.size() ? sliding[i] : sliding[i % period]);
  sliding = pattern;
  return config;
}

ModelAnswer search_model(const Combination& combination, const ModelConfig& config, const MemoryBudget& budget,
                         const std::function<MemoryPrediction(const ModelConfig&)>& predict) {
  std::vector<std::int64_t> counts(kMostLayers);
  std::iota(counts.begin(), counts.end(), 1);
  const auto of = [&](std::int64_t layers) { return predict(with_layers(config, layers)); };
  // Each further layer takes nearly the same memory. Both points have few enough layers for all units to be gathered at
  // once.
  const std::vector<std::int64_t> first{4, 6};
  const auto guess = guess_largest(first, [&](std::int64_t layers) { return headroom(of(layers), budget); });
  ModelAnswer answer;
  answer.combination = combination;
  answer.layers =
      largest_that_fits(counts, guess, [&](std::int64_t layers) { return fits_budget(of(layers), budget); });
  answer.prediction = of(std::max<std::int64_t>(1, answer.layers));
  if (answer.layers > 0) answer.parameters = num_parameters(parameter_table(with_layers(config, answer.layers)));
  return answer;
}

std::string describe_models(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget) {
  auto text = fmt::format("{:>6} {:<18} {:<10} {:<9} {:>8} {:>12} {:>12} {:>7}  {}\n", "ranks", "sharding", "recompute",
                          "precision", "layers", "parameters", "memory", "of all", "peak at");
  for (const auto& a : answers) {
    const auto& c = a.combination;
    const auto needed = needed_bytes(a.prediction);
    text += fmt::format("{:>6} {:<18} {:<10} {:<9} {:>8} {:>12} {:>12} {:>6.1f}%  {}\n", c.ranks, to_string(c.sharding),
                        c.checkpointing(), float_type_name(c.precision),
                        a.layers == kMostLayers ? fmt::format("{}+", a.layers) : std::to_string(a.layers),
                        fmt::format("{:.1f} M", static_cast<double>(a.parameters) / 1e6), bytes_text(needed),
                        100.0 * static_cast<double>(needed) / static_cast<double>(budget_of(budget)),
                        a.layers > 0 ? a.prediction.profile.phase : "not even one layer fits");
  }
  return text;
}

nlohmann::json models_json(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget) {
  const auto best = std::ranges::max_element(answers, {}, &ModelAnswer::layers);
  auto json = model_json(*best, budget);
  json["combinations"] = nlohmann::json::array();
  for (const auto& answer : answers) json["combinations"].push_back(model_json(answer, budget));
  return json;
}

void check_search_options(const MemprobeOptions& options) {
  const std::string search = options.search_model ? "--search model" : "--search ranks";
  if (options.measure) throw UsageError(search + " predicts: it goes without --measure");
  if (!options.plot_file.empty()) throw UsageError("--plot draws one job's memory: it goes without " + search);
}

unsigned free_levers(const MemprobeOptions& options, const MemoryBudget& budget) {
  const auto& train = options.train;
  unsigned levers = 0;
  if (options.checkpointings.front() == 0) levers |= kRecompute;
  for (const auto& [whole, narrow] : kEightBitOptimizers) {
    if (train.optimizer.kind == whole) levers |= kEightBit;
  }
  const bool moved =
      train.sharding.cpu_offload || train.sharding.offload_optimizer.place != OffloadConfig::Place::device;
  return budget.gpu && !moved ? levers | kOffload : levers;
}

TrainOptions with_levers(TrainOptions options, unsigned levers) {
  if ((levers & kOffload) != 0) options.sharding.offload_optimizer = parse_offload("cpu");
  if ((levers & kEightBit) == 0) return options;
  for (const auto& [whole, narrow] : kEightBitOptimizers) {
    if (options.optimizer.kind == whole) {
      options.optimizer.kind = narrow;
      break;
    }
  }
  return options;
}

std::vector<std::int64_t> rank_counts(const TrainOptions& options, int ranks_per_node, int most) {
  std::vector<std::int64_t> counts;
  for (std::int64_t ranks = 1; ranks <= most; ranks += ranks < ranks_per_node ? 1 : ranks_per_node) {
    if (options.total_batch_size % (ranks * options.batch_size) == 0) counts.push_back(ranks);
  }
  return counts;
}

std::vector<RanksAnswer> search_ranks(const std::vector<Combination>& combinations, unsigned levers,
                                      const std::vector<std::int64_t>& counts,
                                      const std::function<MemoryPrediction(const Combination&, unsigned)>& predict,
                                      const std::function<bool(const MemoryPrediction&)>& fits) {
  std::vector<RanksAnswer> all;
  for (const auto& start : combinations) {
    std::vector<std::pair<unsigned, std::size_t>> known;  // sets of levers, and how many counts are too few for them
    for (const unsigned set : {0U, 1U, 2U, 4U, 3U, 5U, 6U, 7U}) {
      if ((set & ~levers) != 0) continue;
      auto limit = counts.size();
      for (const auto& [part, too_few] : known) {
        if ((part & ~set) == 0) limit = std::min(limit, too_few);
      }
      auto combination = start;
      if ((set & kRecompute) != 0) combination.checkpoint_every = 1;
      const auto predict_with = [&](std::int64_t place) {
        combination.ranks = static_cast<int>(element(counts, place));
        return predict(combination, set);
      };
      std::vector<std::int64_t> places(limit);
      std::iota(places.begin(), places.end(), 1);
      const auto too_few =
          largest_that_fits(places, 1, [&](std::int64_t place) { return !fits(predict_with(place - 1)); });
      if (too_few == static_cast<std::int64_t>(limit)) continue;
      known.emplace_back(set, static_cast<std::size_t>(too_few));
      auto prediction = predict_with(too_few);
      all.push_back({.combination = combination, .levers = set, .prediction = std::move(prediction)});
    }
  }
  std::ranges::stable_sort(all, {}, [](const RanksAnswer& a) { return std::pair(a.combination.ranks, num_levers(a)); });
  return all;
}

std::string describe_ranks(const std::vector<RanksAnswer>& answers, const MemprobeOptions& options,
                           const MemoryBudget& budget) {
  if (answers.empty()) return "nothing fits\n";
  auto text = fmt::format("{:>6} {:>6} {:<18} {:<10} {:<9} {:<18} {:<8} {:>11} {:>7} {:>11} {:>10}{}\n", "ranks",
                          "nodes", "sharding", "recompute", "precision", "optimizer", "offload", "memory", "of all",
                          "host/node", "tok/s", cost_head(options, budget));
  for (const auto& a : answers) {
    const auto& c = a.combination;
    const auto job = with_levers(options.train, a.levers);
    const auto needed = needed_bytes(a.prediction);
    text += fmt::format(
        "{:>6} {:>6} {:<18} {:<10} {:<9} {:<18} {:<8} {:>11} {:>6.1f}% {:>11} {:>10}{}\n", c.ranks,
        (c.ranks + c.ranks_per_node - 1) / c.ranks_per_node, to_string(c.sharding), c.checkpointing(),
        float_type_name(c.precision), job.optimizer.kind,
        job.sharding.cpu_offload ? "cpu" : to_string(job.sharding.offload_optimizer), bytes_text(needed),
        100.0 * static_cast<double>(needed) / static_cast<double>(budget_of(budget)), bytes_text(host_bytes_of_node(a)),
        a.speed ? format_count(static_cast<std::int64_t>(a.speed->tokens_per_second)) : "-",
        cost_columns(run_cost(c, a.speed, options, budget), options));
  }
  return text;
}

nlohmann::json ranks_json(const std::vector<RanksAnswer>& answers, const MemprobeOptions& options,
                          const MemoryBudget& budget) {
  nlohmann::json json{{"fits", false}};
  if (!answers.empty()) json = ranks_answer_json(answers.front(), options, budget);
  json["combinations"] = nlohmann::json::array();
  for (const auto& answer : answers) json["combinations"].push_back(ranks_answer_json(answer, options, budget));
  return json;
}

}  // namespace fsdp::detail
