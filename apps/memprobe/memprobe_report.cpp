// The output of fsdp-memprobe: JSON, tables, advice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/memprobe/memprobe_job.hpp"
#include "apps/memprobe/run_cost.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/ops/products/fp8.hpp"
#include "lib/planning/memory/timeline.hpp"

namespace fsdp::detail {
namespace {

std::string bytes(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

std::int64_t budget_bytes(const MemoryBudget& budget) {
  return budget.gpu ? budget.gpu->total_bytes : budget.host_bytes;
}

std::string words(std::string part) {
  std::replace(part.begin(), part.end(), '_', ' ');
  return part;
}

/// Returns the parts that add up to the peak.
std::vector<std::pair<std::string, std::int64_t>> parts_of(const MemoryPrediction& p) {
  std::vector<std::pair<std::string, std::int64_t>> parts;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    parts.emplace_back(to_string(static_cast<MemoryCategory>(c)), element(p.profile.at_peak, c));
  }
  if (p.on_gpu) {
    parts.emplace_back("rounding_and_fragmentation", p.rounding_bytes());
    parts.emplace_back("cuda_context", p.overheads.context_bytes);
    parts.emplace_back("nccl", p.overheads.nccl_bytes);
  }
  return parts;
}

/// Returns what a rank on CPUs needs beside its tensors.
std::vector<std::pair<std::string, std::int64_t>> parts_beside(const MemoryPrediction& p) {
  const auto& host = p.host;
  std::vector<std::pair<std::string, std::int64_t>> parts{{"program_and_libraries", host.program_bytes}};
  // A save and a load never happen at the same time.
  const bool saves = host.save_bytes >= host.load_bytes;
  parts.emplace_back(saves ? "checkpoint_copy" : "weights_being_read", saves ? host.save_bytes : host.load_bytes);
  return parts;
}

/// Returns, for example, "2 MiB tensors + 180 MiB program and libraries + 1 MiB checkpoint copy".
std::string sum_of_needs(const MemoryPrediction& p) {
  auto text = bytes(p.host.states_bytes) + " tensors";
  for (const auto& [part, n] : parts_beside(p)) text += " + " + bytes(n) + " " + words(part);
  return text;
}

const char* meaning(const std::string& part, bool quantized) {
  if (quantized && part == "parameters") return "4-bit matrices, and the rest as it is trained or kept";
  constexpr std::pair<const char*, const char*> kMeanings[]{
      {"parameters", "float32 master weights, and this rank's rows in the parameter dtype"},
      {"gradients", "float32 shards"},
      {"optimizer", "the optimizer's state, shards"},
      {"gathered", "units gathered or under way"},
      {"reduce_buffers", "full gradients on their way to the shards"},
      {"activations", "kept for the backward"},
      {"logits", "head and loss, one chunk of tokens"},
      {"batch", "ids and targets"},
      {"workspace", "what only this moment needs, and libraries'"},
      {"rounding_and_fragmentation", "of the caching allocator: blocks, segments, holes"},
      {"cuda_context", "driver and kernels, outside the allocator"},
      {"nccl", "channels, outside the allocator"},
      {"program_and_libraries", "before the first tensor"},
      {"checkpoint_copy", "what a save is written from while training goes on"},
      {"weights_being_read", "the largest piece"}};
  for (const auto& [name, text] : kMeanings) {
    if (part == name) return text;
  }
  return "";
}

/// ", LoRA of rank 16 on nf4"
std::string adapter_words(const MemprobeOptions& options) {
  const auto& sharding = options.train.sharding;
  if (!sharding.lora.enabled()) return "";
  return fmt::format(", LoRA of rank {}{}", sharding.lora.rank,
                     !sharding.quantize.enabled()     ? ""
                     : sharding.quantize.double_quant ? " on nf4 (double quantization)"
                                                      : " on nf4");
}

double relative_error(const Answer& a) {
  const auto measured = static_cast<double>(a.measured->reserved_peak_bytes > 0 ? a.measured->reserved_peak_bytes
                                                                                : a.measured->peak_bytes);
  const auto predicted = static_cast<double>(a.prediction.allocator_peak_bytes());
  return (predicted - measured) / measured;
}

/// Says why an answer is slower than the planned one.
std::string slower_by(const Answer& a, const Answer& best) {
  if (!a.fits) return fmt::format("batch {} does not fit", a.batch_size);
  if (&a == &best || !a.speed || !best.speed) return "";
  // Compare per rank, because the numbers of ranks may differ.
  return what_costs(a.speed->time, a.speed->tokens / a.combination.ranks, best.speed->time,
                    best.speed->tokens / best.combination.ranks);
}

double share_of_budget(const MemoryPrediction& p, const MemoryBudget& budget) {
  return static_cast<double>(needed_bytes(p)) / static_cast<double>(budget_bytes(budget));
}

std::string does_not_fit(const Answer& a, const MemoryBudget& budget) {
  const auto& p = a.prediction;
  if (p.on_gpu) {
    return fmt::format("\nit does not fit: batch size {} has no room in the gpu's {}\n", a.batch_size,
                       bytes(budget_bytes(budget)));
  }
  auto text = fmt::format("\nit does not fit: batch size {} needs {}", a.batch_size, bytes(needed_bytes(p)));
  text += " (" + sum_of_needs(p) + ")";
  if (budget.margin_bytes > 0) text += fmt::format(", {} are to stay free (--margin)", bytes(budget.margin_bytes));
  return text + fmt::format(", a rank has {}\n", bytes(budget_bytes(budget)));
}

std::string measured_text(const Answer& a) {
  const auto& m = *a.measured;
  std::string text =
      fmt::format("\nmeasured  {} in tensors at the peak{}   prediction {:+.2f} %   resident set {}   step {:.3f} s\n",
                  bytes(m.peak_bytes), a.alone ? ", this rank alone" : ", largest of any rank", 100 * relative_error(a),
                  bytes(m.rss_bytes), m.step_seconds);
  if (m.total_bytes == 0) return text;
  text += fmt::format("          reserved {} = {:.1f} % of the gpu   {} alloc retries   {} out of memory\n",
                      bytes(m.reserved_peak_bytes),
                      100.0 * static_cast<double>(m.reserved_peak_bytes) / static_cast<double>(m.total_bytes),
                      m.alloc_retries, m.ooms);
  if (m.alloc_retries > 0) {
    text +=
        "advice    the allocator had to give memory back and ask again, which stops the GPU: use a smaller batch, or\n"
        "          --activation-checkpointing\n";
  }
  return text;
}

}  // namespace

nlohmann::json measurement_json(const MemoryMeasurement& m) {
  return {{"peak_bytes", m.peak_bytes},
          {"reserved_peak_bytes", m.reserved_peak_bytes},
          {"total_bytes", m.total_bytes},
          {"alloc_retries", m.alloc_retries},
          {"ooms", m.ooms},
          {"peak_rss_bytes", m.rss_bytes},
          {"step_seconds", m.step_seconds}};
}

nlohmann::json answer_json(const Answer& a, const MemprobeOptions& options, const MemoryBudget& budget) {
  const auto& p = a.prediction;
  nlohmann::json json{{"sharding", to_string(a.combination.sharding)},
                      {"activation_checkpointing", a.combination.checkpointing()},
                      {"precision", float_type_name(a.combination.precision)},
                      {"fp8", asks_for_fp8(options.train.sharding.compute_dtype)},
                      {"ranks", a.combination.ranks},
                      {"ranks_per_node", a.combination.ranks_per_node},
                      {"rank", options.rank},
                      {"batch_size_per_device", a.batch_size},
                      {"gradient_accumulation_steps", p.accumulation_steps},
                      {"total_batch_size", p.rows_per_step},
                      {"fits", a.fits},
                      {"budget_bytes", budget_bytes(budget)},
                      {"margin_bytes", budget.margin_bytes},
                      {"needed_bytes", needed_bytes(p)},
                      {"peak_bytes", p.total_bytes()},
                      {"peak_tensor_bytes", p.profile.peak_bytes},
                      {"peak_moment", p.profile.phase},
                      {"peak_step", p.profile.step},
                      {"flops_per_step", p.flops}};
  for (const auto& [part, n] : parts_of(p)) json["breakdown"][part] = n;
  json["host"] = {{"program_bytes", p.host.program_bytes},
                  {"states_bytes", p.host.states_bytes},
                  {"load_bytes", p.host.load_bytes},
                  {"save_bytes", p.host.save_bytes},
                  {"disk_bytes", p.host.disk_bytes},
                  {"disk_save_bytes", p.host.disk_save_bytes},
                  {"peak_bytes", p.host.peak_bytes()},
                  {"node_bytes", p.host.peak_bytes() * std::min(a.combination.ranks, a.combination.ranks_per_node)}};
  const auto axis = [](const AxisCounts& c) {
    return nlohmann::json{{"all_gathers", c.all_gathers},
                          {"reduce_scatters", c.reduce_scatters},
                          {"all_reduces", c.all_reduces},
                          {"bytes", c.bytes}};
  };
  json["communication_per_step"] = {{"shard", axis(p.comm.shard)},
                                    {"replicate", axis(p.comm.replicate)},
                                    {"bytes", p.comm.shard.bytes + p.comm.replicate.bytes}};
  if (p.on_gpu) {
    json["gpu"] = budget.gpu->name;
    json["cuda_graphs"] = p.recorded_micro_batches > 0;
    json["reserved_peak_bytes"] = p.allocator.reserved_peak_bytes;
    json["alloc_retries"] = p.allocator.num_alloc_retries;
  }
  if (a.speed) json["speed"] = speed_json(*a.speed);
  if (const auto cost = run_cost(a.combination, a.speed, options, budget)) json["run"] = to_json(*cost);
  if (a.largest) json["largest_batch_per_device"] = a.measured_largest.value_or(*a.largest);
  if (a.measured_largest) json["predicted_largest_batch_per_device"] = *a.largest;
  if (a.measured) {
    json["measured"] = measurement_json(*a.measured);
    json["measured_peak_bytes"] =
        a.measured->reserved_peak_bytes > 0 ? a.measured->reserved_peak_bytes : a.measured->peak_bytes;
    json["relative_error"] = relative_error(a);
  }
  return json;
}

std::string describe_answer(const Answer& a, const MemprobeOptions& options, const MemoryBudget& budget) {
  const auto& c = a.combination;
  const auto& p = a.prediction;
  std::string text = fmt::format(
      "job       {} x {}{}   {}, {}{}, checkpointing {}{}   {} a step\n\n", format_count_of(c.ranks, "rank"),
      format_count_of(a.batch_size, "sequence"),
      p.accumulation_steps > 1 ? fmt::format(" x {} micro-batches", p.accumulation_steps) : "", to_string(c.sharding),
      float_type_name(c.precision), asks_for_fp8(options.train.sharding.compute_dtype) ? " with products in fp8" : "",
      c.checkpointing(), adapter_words(options), format_count_of(p.rows_per_step, "sequence"));
  text += fmt::format("memory of rank {} at its peak: {} of step {}\n", options.rank, p.profile.phase, p.profile.step);
  const bool quantized = options.train.sharding.quantize.enabled();
  const auto line = [&](const std::string& name, std::int64_t n, const std::string& note) {
    text += fmt::format("  {:<28}{:>12}   {}\n", name, bytes(n), note);
  };
  const auto lines = [&](const std::vector<std::pair<std::string, std::int64_t>>& parts) {
    for (const auto& [part, n] : parts) line(words(part), n, meaning(part, quantized));
  };
  lines(parts_of(p));
  if (!p.on_gpu) {
    line("tensors together", p.host.states_bytes, "");
    lines(parts_beside(p));
  }
  line(p.on_gpu ? "together" : "needed", needed_bytes(p),
       fmt::format("{:.1f} % of {}{}", 100 * share_of_budget(p, budget), bytes(budget_bytes(budget)),
                   p.on_gpu ? fmt::format("   {} alloc retries{}", p.allocator.num_alloc_retries,
                                          p.allocator.num_ooms > 0 ? ": out of memory" : "")
                            : ""));
  if (p.on_gpu) {
    text += fmt::format(
        "host memory of a rank: {} ({} program, {} offloaded, {} while a checkpoint is saved, {} while weights load)\n",
        bytes(p.host.peak_bytes()), bytes(p.host.program_bytes), bytes(p.host.states_bytes), bytes(p.host.save_bytes),
        bytes(p.host.load_bytes));
  }
  if (p.host.disk_bytes > 0) {
    text += fmt::format("on the disk of --offload-optimizer: {} a rank, and {} more while a checkpoint is saved\n",
                        bytes(p.host.disk_bytes), bytes(p.host.disk_save_bytes));
  }
  text += fmt::format(
      "a step receives {} on the shard axis, {} on the replicate axis; {:.2f} TFLOP of matrix products a rank\n",
      bytes(p.comm.shard.bytes), bytes(p.comm.replicate.bytes), p.flops / 1e12);
  // A job that does not fit has no speed.
  if (a.fits && a.speed) text += "predicted " + describe_speed(*a.speed) + "\n";
  if (const auto cost = run_cost(c, a.speed, options, budget); a.fits && cost)
    text += "the run takes " + describe_cost(*cost, options) + "\n";
  if (a.largest) {
    const auto note = a.measured_largest ? fmt::format(" (measured; predicted {})", *a.largest)
                                         : fmt::format(" ({} left free, see --margin)", bytes(budget.margin_bytes));
    text += fmt::format("\nlargest batch size per device: {}{}\n", a.measured_largest.value_or(*a.largest), note);
  }
  if (!a.fits) text += does_not_fit(a, budget);
  if (a.measured) text += measured_text(a);
  return text;
}

std::string describe_bf16(const Answer& a, const MemprobeOptions& options, const MemoryBudget& budget) {
  auto text =
      fmt::format("with --precision bf16: {} of {}", bytes(needed_bytes(a.prediction)), bytes(budget_bytes(budget)));
  if (!a.fits) return text + ", which does not fit\n";
  if (a.largest) text += fmt::format(", largest batch {}", *a.largest);
  if (a.speed) text += fmt::format(", {} tok/s", format_count(static_cast<std::int64_t>(a.speed->tokens_per_second)));
  if (const auto cost = run_cost(a.combination, a.speed, options, budget)) text += ", " + describe_cost(*cost, options);
  return text + "\n";
}

std::string describe_table(const std::vector<Answer>& answers, const MemprobeOptions& options,
                           const MemoryBudget& budget) {
  std::string text = fmt::format("{:>6} {:<18} {:<10} {:<9} {:>7} {:>7} {:>10} {:>6} {:>11} {:>6} {:>7} {:>11}{}  {}\n",
                                 "ranks", "sharding", "recompute", "precision", "largest", "batch", "tok/s", "MFU",
                                 "memory", "of all", "retries", "received", cost_head(options, budget), "slower by");
  const auto& best = answers[best_answer(answers, options.plan_for_largest)];
  for (const auto& a : answers) {
    const auto& p = a.prediction;
    const auto most = a.measured_largest ? a.measured_largest : a.largest;
    text += fmt::format(
        "{:>6} {:<18} {:<10} {:<9} {:>7} {:>7} {:>10} {:>5.0f}% {:>11} {:>5.1f}% {:>7} {:>11}{}  {}\n",
        a.combination.ranks, to_string(a.combination.sharding), a.combination.checkpointing(),
        float_type_name(a.combination.precision), most ? std::to_string(*most) : "-", a.batch_size,
        a.fits && a.speed ? format_count(static_cast<std::int64_t>(a.speed->tokens_per_second)) : "-",
        a.fits && a.speed ? 100 * a.speed->mfu : 0.0, bytes(needed_bytes(p)), 100 * share_of_budget(p, budget),
        p.on_gpu ? std::to_string(p.allocator.num_alloc_retries) : std::string("-"),
        bytes(p.comm.shard.bytes + p.comm.replicate.bytes),
        cost_columns(a.fits ? run_cost(a.combination, a.speed, options, budget) : std::nullopt, options),
        slower_by(a, best));
  }
  return text;
}

void draw_memory(const std::string& file, const Answer& answer, const MemoryBudget& budget, const std::string& title) {
  const auto& p = answer.prediction;
  MemoryTimeline timeline;
  timeline.title = "Memory of a training step: " + title;
  const auto& c = answer.combination;
  timeline.subtitle = fmt::format("{} x {}, {}, {}, checkpointing {}", format_count_of(c.ranks, "rank"),
                                  format_count_of(answer.batch_size, "sequence"), to_string(c.sharding),
                                  float_type_name(c.precision), c.checkpointing());
  // Parts that never change are drawn at the bottom.
  const std::int64_t outside = p.on_gpu ? p.overheads.context_bytes + p.overheads.nccl_bytes : 0;
  if (outside > 0) timeline.layers.emplace_back("CUDA context, NCCL");
  for (int category = 0; category < kNumMemoryCategories; ++category) {
    auto name = std::string(to_string(static_cast<MemoryCategory>(category)));
    std::replace(name.begin(), name.end(), '_', ' ');
    timeline.layers.push_back(std::move(name));
  }
  // The plot cannot show more columns than pixels, so each group of moments is drawn as its highest one.
  constexpr std::size_t kColumns = 800;
  const auto& all = p.profile.timeline;
  const std::size_t group = std::max<std::size_t>(1, (all.size() + kColumns - 1) / kColumns);
  for (std::size_t first = 0; first < all.size(); first += group) {
    const auto last = iterator_at(all, std::min(all.size(), first + group));
    const auto& phase =
        *std::max_element(iterator_at(all, first), last,
                          [](const MemoryPhase& a, const MemoryPhase& b) { return a.peak_bytes < b.peak_bytes; });
    MemoryTimeline::Phase column{phase.name, {}};
    if (outside > 0) column.bytes.push_back(static_cast<double>(outside));
    for (const auto bytes : phase.at_peak) column.bytes.push_back(static_cast<double>(bytes));
    timeline.phases.push_back(std::move(column));
  }
  if (budget.gpu) {
    timeline.limit_bytes = static_cast<double>(budget.gpu->total_bytes);
    timeline.limit_name = fmt::format("{}: {}", budget.gpu->name, format_bytes(timeline.limit_bytes));
  }
  write_output(file, memory_timeline_svg(timeline));
}

}  // namespace fsdp::detail
