#include "apps/convert/convert_job.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "apps/convert/check_files.hpp"
#include "apps/convert/inspect.hpp"
#include "apps/convert/prune_run.hpp"
#include "apps/convert/verify.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/process/stop_signal.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/checkpoints/conversion/conversion_input.hpp"
#include "lib/checkpoints/conversion/convert.hpp"
#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/checkpoints/programs/gguf/gguf_model.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/transform/select.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kModelPrefix = "model.", kHead = "lm_head.";

void require_paths(const ConvertOptions& options) {
  const int modes = options.inspect + options.verify + options.check + options.prune;
  if (modes > 1) throw UsageError("--inspect, --verify, --check and --prune are different things: give one");
  const auto expect = [&](std::size_t number, const char* what) {
    if (options.paths.size() != number) {
      const auto& input = options.input;
      const bool has_patterns = !input.include.empty() || !input.exclude.empty() || !input.rename.empty();
      throw UsageError(fmt::format("{}, but {} {} given{}", what, options.paths.size(),
                                   options.paths.size() == 1 ? "path was" : "paths were",
                                   has_patterns ? " (--include, --exclude and --rename take one pattern: give each "
                                                  "pattern an option of its own)"
                                                : ""));
    }
  };
  if (options.inspect) return expect(1, "--inspect wants one checkpoint");
  if (options.check) return expect(1, "--check wants one checkpoint");
  if (options.prune) return expect(1, "--prune wants one run");
  if (options.verify) return expect(2, "--verify wants the two checkpoints to compare");
  expect(2, "a conversion wants the input and the output");
}

/// Prints text for people to stdout, or puts JSON into the report.
void answer(ProcessGroup& world, const ConvertOptions& options, nlohmann::json& report, nlohmann::json json,
            const std::string& text) {
  if (world.rank() != 0) return;
  report = std::move(json);
  if (options.job.json) return;
  std::cout << text << std::flush;
  if (!std::cout) throw IoError("stdout: cannot write the result");
}

ExitCode run_inspect(ProcessGroup& world, const ConvertOptions& options, nlohmann::json& report) {
  const auto changes = changes_of(options.input);
  const auto source = transformed(open_input(options.paths[0], changes, false), changes);
  auto inspection = inspect(*source);
  const auto text = inspection_table(inspection);
  answer(world, options, report, std::move(inspection), text);
  return ExitCode::ok;
}

ScanOptions scan_options(const ConvertOptions& options, const char* verb, Progress& progress, const StopSignal& stop) {
  ScanOptions scan;
  scan.jobs = options.jobs;
  scan.progress = [verb, &progress](std::uint64_t done, std::uint64_t total) {
    show_bytes(progress, verb, done, total);
  };
  scan.stop = [&] { return stop.received() != 0; };
  return scan;
}

/// Broadcasts the exit code from rank 0, which has the report.
ExitCode agreed(ProcessGroup& world, ExitCode code) {
  return static_cast<ExitCode>(static_cast<int>(world.all_reduce(static_cast<double>(code), Reduce::max)));
}

ExitCode run_check(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report) {
  auto changes = changes_of(options.input);
  if (!changes.map) changes.map = NameMap::none;  // of a model of Megatron-core, all that is stored
  const auto original = open_input(options.paths[0], changes, false);
  const auto source = transformed(original, changes);
  refuse_nothing(*source, *original, options.paths[0]);
  const StopSignal stop;
  Progress progress(log, true, options.progress_seconds);
  const auto found = check(*source, world, scan_options(options, "read", progress, stop));
  progress.finish();
  answer(world, options, report, to_json(found), to_text(found));
  if (!found.damage.empty()) return agreed(world, ExitCode::bad_input);
  return agreed(world, found.non_finite.empty() ? ExitCode::ok : ExitCode::answer_no);
}

bool has_view_as_real(const Source& source) {
  return std::any_of(source.tensors().begin(), source.tensors().end(),
                     [](const auto& tensor) { return tensor.name.ends_with("@view_as_real"); });
}

/// True for a model as transformers stores it: safetensors beside a config.json, without a container around the names.
bool is_export(const Source& source) {
  std::error_code error;
  return source.info().format == "safetensors" && source.info().adapter.empty() && !source.tensors().empty() &&
         std::filesystem::is_regular_file(source.info().directory / "config.json", error) &&
         model_part(source).prefix.empty();
}

/// The output layer of a tied model, which its config.json lets an export leave out.
bool lacks_tied_head(const Source& source) {
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(source.tensors(), [&](const auto& tensor) { return tensor.name == name; });
  };
  const auto file = source.info().directory / "config.json";
  std::error_code error;
  if (has(kTiedHead) || std::ranges::none_of(token_embeddings(), has) || !std::filesystem::is_regular_file(file, error))
    return false;
  const auto config = parse_json_or_discard(read_text_file(file, 1u << 20), file.string());
  return config.is_object() && ties_word_embeddings(config);
}

/// If one side is an export, converts the other as `--to hf` would before comparing: the model alone, with the names
/// and matrices of the export.
void compare_like_export(std::shared_ptr<const Source>& other, const Source& exported, const SourceChanges& input,
                         const Logger& log) {
  if (!is_export(exported)) return;
  const auto part = model_part(*other);
  // An optimizer beside the model counts like a container around the model.
  const bool has_container = !part.prefix.empty() || std::ranges::find(part.contains, false) != part.contains.end();
  if (has_container) {
    SelectOptions model;
    model.model_only = true;
    other = select(std::move(other), model);
  }
  const bool keeps_names = input.map || !input.select.rename.empty();
  const bool maps = !keeps_names && conv1d_layout(*other) == false && conv1d_layout(exported) == true;
  if (maps) other = map_names(std::move(other), NameMap::mingpt_to_gpt2);
  const bool is_tied = lacks_tied_head(exported) && !lacks_tied_head(*other);
  if (is_tied) {
    SelectOptions without_head;
    without_head.exclude = {std::string(kTiedHead)};
    other = select(std::move(other), without_head);
  }
  if (!has_container && !maps) return;
  log.info(fmt::format("{} holds a model only: the other side's model is compared with it{}{}",
                       exported.info().directory.string(), maps ? ", with GPT-2's names and matrices" : "",
                       is_tied ? "; its config.json ties lm_head.weight to the embedding" : ""));
}

/// If one side is a GGUF file, converts the other as `--to gguf` would, in the same types, before comparing.
void compare_like_gguf(std::shared_ptr<const Source>& other, const Source& gguf, const SourceChanges& input) {
  if (gguf.info().format != kGgufMagic || other->info().format == kGgufMagic) return;
  const auto& metadata = gguf.info().metadata;
  const auto type = metadata.find("general.file_type");
  constexpr std::array types{GgufFileType::f32, GgufFileType::f16, GgufFileType::q8_0, GgufFileType::bf16};
  const auto* const found = std::ranges::find_if(types, [&](GgufFileType known) {
    return type != metadata.end() && type->second == std::to_string(static_cast<std::uint32_t>(known));
  });
  if (found == types.end())
    throw UsageError(gguf.info().named_file().string() +
                     ": is in types that --to gguf does not write (general.file_type), so that it cannot be compared "
                     "with what it was made of");
  const auto config = known_model(*other, input);
  SelectOptions model;
  model.model_only = true;
  const auto directory = other->info().directory;
  const auto before = config ? *config : read_model_config(directory);
  other = gguf_model(select(other, model), config_after_merge(before, *other, input), *found);
}

/// Where the names of `source` that `other` lacks are those of `other` without "model.", as when a Llama's model was
/// saved without its head around it, gives them their prefix.
void compare_with_prefix(std::shared_ptr<const Source>& source, const Source& other, const Logger& log) {
  std::set<std::string> names;
  for (const auto& tensor : other.tensors()) names.insert(tensor.name);
  std::size_t lacking = 0;
  for (const auto& tensor : source->tensors()) {
    if (tensor.name.starts_with(kHead) && names.contains(tensor.name)) continue;
    if (names.contains(tensor.name) || !names.contains(std::string(kModelPrefix) + tensor.name)) return;
    ++lacking;
  }
  if (lacking == 0) return;
  SelectOptions with_prefix;
  with_prefix.rename.emplace_back("^(?!lm_head\\.)", std::string(kModelPrefix));
  source = select(std::move(source), with_prefix);
  log.info(fmt::format("{} tensors of {} are compared with those that are named \"{}\" before it in {}", lacking,
                       source->info().named_file().string(), kModelPrefix, other.info().named_file().string()));
}

ExitCode run_verify(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report) {
  const bool both_flat =
      is_local_state(*open_source(options.paths[0])) && is_local_state(*open_source(options.paths[1]));
  const auto given = changes_of(options.input);
  auto input_a = given;
  input_a.select.must_match = false;  // a name may be on one side alone, as verify() says then
  auto input_b = input_a;
  if (!is_local_state(*open_source(options.paths[1]))) input_b.optim_files.clear();
  input_b.merge_adapter.clear();
  input_b.dequantize = false;
  input_b.quantize = {};
  auto a = transformed(open_input(options.paths[0], input_a, !both_flat), input_a);
  auto b = open_input(options.paths[1], input_b, !both_flat);
  // B is compared under the names that a conversion of A would give: the options that select go for both, unless names
  // change.
  const bool renames = !given.select.rename.empty() || given.map.value_or(NameMap::none) != NameMap::none;
  if (!renames) {
    input_b.dtype.reset();
    b = transformed(std::move(b), input_b);
  }
  if (a->info().format == kGgufMagic || b->info().format == kGgufMagic) {
    compare_like_gguf(a, *b, given);
    compare_like_gguf(b, *a, given);
  } else {
    compare_like_export(a, *b, given, log);
    compare_like_export(b, *a, given, log);
  }
  if (!renames) {
    compare_with_prefix(a, *b, log);
    compare_with_prefix(b, *a, log);
  }
  // A conversion to safetensors, which has no complex numbers, stores these as pairs.
  if (has_view_as_real(*b)) a = view_complex_as_real(std::move(a));
  if (has_view_as_real(*a)) b = view_complex_as_real(std::move(b));

  const StopSignal stop;
  Progress progress(log, true, options.progress_seconds);
  const auto found = verify(*a, *b, world, {options.tolerance, scan_options(options, "compared", progress, stop)});
  progress.finish();
  answer(world, options, report, to_json(found), to_text(found));
  return agreed(world, found.equal() ? ExitCode::ok : ExitCode::answer_no);
}

ExitCode run_prune(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report) {
  const StopSignal stop;
  bool has_failed = false;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    report = prune_run(options.paths[0],
                       {.keep_optimizer = options.keep_optimizer,
                        .dry_run = options.dry_run,
                        .stop = [&] { return stop.received() != 0; }},
                       log);
    has_failed = !report["failed"].empty();
  });
  return agreed(world, has_failed ? ExitCode::bad_input : ExitCode::ok);
}

nlohmann::json describe(const Conversion& conversion, const ConversionPlan& plan) {
  nlohmann::json report{{"input", conversion.input},
                        {"input_format", plan.source->info().format},
                        {"output", conversion.output.string()},
                        {"output_format", conversion.writer->name},
                        {"tensors", plan.source->tensors().size()},
                        {"values", plan.source->values().size()}};
  if (!conversion.changes.merge_adapter.empty()) report["merged_adapter"] = conversion.changes.merge_adapter;
  return report;
}

void show_plan(const Conversion& conversion, const ConversionPlan& plan, const Logger& log, nlohmann::json& report) {
  const auto& output = conversion.output;
  const auto layout = plan.target->plan(*plan.source);
  auto files = nlohmann::json::array();
  std::uint64_t bytes = 0;
  for (const auto& file : layout.files) {
    const auto name = plan.target->is_directory() ? output / file.name : output.parent_path() / file.name;
    log.info(fmt::format("would write {} to {}", format_count_of(static_cast<std::int64_t>(file.size_bytes), "byte"),
                         name.string()));
    files.push_back({{"name", name.string()}, {"bytes", file.size_bytes}});
    bytes += file.size_bytes;
  }
  report = describe(conversion, plan);
  report["dry_run"] = true;
  report["files"] = std::move(files);
  report["bytes"] = bytes;
}

ExitCode run_conversion(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report) {
  const StopSignal stop;
  const auto conversion = conversion_of(options);
  const auto plan = plan_conversion(conversion, log);
  if (options.dry_run) {
    show_plan(conversion, plan, log, report);
    return ExitCode::ok;
  }
  Progress progress(log, true, options.progress_seconds);
  const auto copied = write_conversion(
      world, conversion, plan,
      [&](const CopyProgress& done) { show_bytes(progress, "written", done.bytes_done, done.bytes_total); },
      [&] { return stop.received() != 0; });
  progress.finish();
  const auto bytes = static_cast<double>(copied.bytes_written);
  log.info(fmt::format("wrote {}: {} in {} {}, {:.2f} s ({}/s)", conversion.output.string(), format_bytes(bytes),
                       copied.num_files, copied.num_files == 1 ? "file" : "files", copied.seconds,
                       format_bytes(copied.seconds > 0 ? bytes / copied.seconds : 0)));
  report = describe(conversion, plan);
  report["bytes"] = copied.bytes_written;
  report["num_files"] = copied.num_files;
  report["seconds"] = copied.seconds;
  const auto ignored = left_out_by(world, conversion, plan);
  report["ignored"] = ignored.to_json();
  log_ignored(ignored, log);
  return ExitCode::ok;
}

}  // namespace

std::string progress_text(std::uint64_t bytes_done, std::uint64_t bytes_total, double seconds) {
  const auto done = static_cast<double>(bytes_done);
  const auto total = static_cast<double>(bytes_total);
  const double rate = seconds > 0 ? done / seconds : 0;
  return fmt::format("{} of {} ({:.0f} %)   {}/s   eta {}", format_bytes(done), format_bytes(total),
                     total > 0 ? 100 * done / total : 100.0, format_bytes(rate),
                     rate > 0 ? format_duration((total - done) / rate) : "?");
}

void show_bytes(Progress& progress, const char* verb, std::uint64_t bytes_done, std::uint64_t bytes_total) {
  progress.show([&] { return fmt::format("{} {}", verb, progress_text(bytes_done, bytes_total, progress.seconds())); });
}

ExitCode run_convert_job(ProcessGroup& world, const ConvertOptions& given, const Logger& log, nlohmann::json& report) {
  require_paths(given);
  if (given.prune) return run_prune(world, given, log, report);
  auto options = given;
  const auto take_newest = [&log](std::string& path) {
    if (const auto remark = remark_of_newest(path); !remark.empty()) log.warning(remark);
    path = checkpoint_in_run(path);
  };
  take_newest(options.paths[0]);
  if (options.verify) take_newest(options.paths[1]);
  if (!options.input.reference.empty()) take_newest(options.input.reference);
  if (options.inspect) return run_inspect(world, options, report);
  if (options.check) return run_check(world, options, log, report);
  if (options.verify) return run_verify(world, options, log, report);
  return run_conversion(world, options, log, report);
}

}  // namespace fsdp
