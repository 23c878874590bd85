// The page of fsdp-eval --html: figures of runs as JSON within report_page.html, which its script draws.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/reports/runs/report_page_text.hpp"
#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kCurvePoints = 6000;    // of one curve of all runs together; they share a page of a megabyte
constexpr std::size_t kMostOfARun = 2000;     // more than there are pixels
constexpr std::size_t kSampleBytes = 200000;  // of all runs together
constexpr std::size_t kLongestSample = 2000;
constexpr double kMiB = 1 << 20;
// Colors on a dark page, in the order of kRunColors and chosen by the same rule: 0.115 apart (0.099 without blue
// cones), 3 : 1 against the page.
constexpr std::array<std::string_view, kRunColors.size()> kDarkColors{
    "#5c9df0", "#f08a50", "#f3c30f", "#24ffff", "#9b4773", "#8e56d6", "#4c7c03", "#b681a5", "#97c3b9", "#c3ff96"};

/// The number itself, a whole one without a fraction; null where there is none.
Json exact(double x) {
  if (!std::isfinite(x)) return nullptr;
  const bool is_whole = x == std::trunc(x) && std::abs(x) < 1e15;
  return is_whole ? Json(static_cast<std::int64_t>(x)) : Json(x);
}

/// Five digits: more than a picture shows.
Json rounded(double x) { return exact(std::strtod(fmt::format("{:.5g}", x).c_str(), nullptr)); }

/// Five digits, or four decimals where these are more: losses are shown with four decimals.
Json rounded_loss(double x) {
  return std::abs(x) < 10 || std::abs(x) > 1e9 ? rounded(x)
                                               : exact(std::strtod(fmt::format("{:.4f}", x).c_str(), nullptr));
}

/// Values in equally long stretches, at most `most` of them: the mean of each and, of longer ones, the extremes.
/// \param as_json  rounds a value
Json thinned(const std::vector<double>& values, std::size_t most, Json (*as_json)(double) = rounded) {
  const auto count = std::min(values.size(), most);
  auto mean = Json::array(), low = Json::array(), high = Json::array();
  for (std::size_t c = 0; c < count; ++c) {
    Spread stretch;
    double sum = 0;
    for (auto i = c * values.size() / count; i < (c + 1) * values.size() / count; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      stretch.lowest = stretch.count == 0 ? values[i] : std::min(stretch.lowest, values[i]);
      stretch.highest = stretch.count == 0 ? values[i] : std::max(stretch.highest, values[i]);
      ++stretch.count;
    }
    mean.push_back(as_json(sum / static_cast<double>(stretch.count)));
    low.push_back(as_json(stretch.lowest));
    high.push_back(as_json(stretch.highest));
  }
  if (values.size() <= most) return {{"mean", mean}};
  return {{"mean", mean}, {"low", low}, {"high", high}};
}

/// Where points lie, counted in each of three ways: the end of each stretch.
struct Places {
  std::vector<double> step, tokens, seconds;

  Json ends(std::size_t most) const {
    Json json;
    const auto count = std::min(step.size(), most);
    json["step"] = json["tokens"] = json["seconds"] = Json::array();
    for (std::size_t c = 0; c < count; ++c) {
      const auto end = (c + 1) * step.size() / count - 1;
      json["step"].push_back(exact(step[end]));
      json["tokens"].push_back(exact(tokens[end]));
      json["seconds"].push_back(rounded(seconds[end]));
    }
    return json;
  }
};

std::string curve_key(const std::string& set, bool is_loss) { return (is_loss ? "validation/" : "metric/") + set; }

constexpr std::string_view kSourceCurve = "source/";
constexpr std::string_view kMeanCurve = "mean/";

Json panel(const std::string& key, const std::string& title, const std::string& unit) {
  return {{"key", key}, {"title", title}, {"unit", unit}};
}

Json validation_panel(const ValidationSummary& validation) {
  static const std::map<std::string, std::string> games{{"chess_accuracy", "Chess: next move is the game's"},
                                                        {"chess_legal", "Chess: moves that are legal"},
                                                        {"chess_result", "Chess: result is the game's"}};
  const auto key = curve_key(validation.set, validation.is_loss);
  if (!validation.is_loss) {
    const auto known = games.find(validation.set);
    const auto unit = validation.higher_is_better ? "%" : "";
    return panel(key, known == games.end() ? validation.set : known->second, unit);
  }
  return panel(key, "Validation loss" + (validation.set.empty() ? "" : ": " + validation.set), "nats per token");
}

/// The pictures of the page: what all runs together have.
Json panels_of(const RunComparison& comparison) {
  Json panels{panel("loss", "Training loss", "nats per token")};
  std::vector<std::string> seen;
  for (const auto& run : comparison.runs) {
    for (const auto& [name, losses] : run.files.source_losses) {
      const auto key = std::string(kSourceCurve) + name;
      if (std::ranges::find(seen, key) != seen.end()) continue;
      seen.push_back(key);
      panels.push_back(panel(key, "Training loss: " + name, "nats per token"));
    }
    for (const auto& [name, values] : run.files.means) {
      const auto key = std::string(kMeanCurve) + name;
      if (std::ranges::find(seen, key) != seen.end()) continue;
      seen.push_back(key);
      panels.push_back(panel(key, "Training: " + name, ""));
    }
  }
  for (const auto& run : comparison.runs) {
    for (const auto& validation : run.validation) {
      const auto key = curve_key(validation.set, validation.is_loss);
      if (std::ranges::find(seen, key) != seen.end()) continue;
      seen.push_back(key);
      panels.push_back(validation_panel(validation));
    }
  }
  panels.push_back(panel("speed", "Speed", "tokens/s"));
  panels.push_back(panel("memory", "Memory of the fullest rank", "MiB"));
  panels.push_back(panel("grad_norm", "Gradient norm", ""));
  const auto has_ranks = [](const RunSummary& run) {
    return std::ranges::any_of(run.files.ranks, [](const auto& line) { return std::isfinite(line.wait_share); });
  };
  if (std::ranges::any_of(comparison.runs, has_ranks))
    panels.push_back(panel("ranks", "Time that ranks wait for the slowest one", "%"));
  return panels;
}

/// The curves of a run by the keys of panels_of().
Json curves_of(const RunSummary& run, std::size_t most) {
  Places places;
  std::vector<double> loss, speed, memory, grad_norm;
  std::map<std::string, std::pair<Places, std::vector<double>>> evals;
  double tokens = 0, seconds = 0;
  auto eval = run.files.evals.begin();
  const auto add_evals_before = [&](double step) {
    for (; eval != run.files.evals.end() && static_cast<double>(eval->step) < step; ++eval) {
      auto& [at, values] = evals[curve_key(eval->set, eval->is_loss)];
      at.step.push_back(static_cast<double>(eval->step));
      at.tokens.push_back(tokens);
      at.seconds.push_back(seconds);
      values.push_back(eval->higher_is_better ? 100 * eval->value : eval->value);
    }
  };
  Places wait_places;
  std::vector<double> waits;
  auto ranks = run.files.ranks.begin();
  for (const auto& step : run.files.steps) {
    add_evals_before(static_cast<double>(step.step));
    places.step.push_back(static_cast<double>(step.step));
    places.tokens.push_back(tokens += step.tokens);
    places.seconds.push_back(seconds += step.seconds);
    loss.push_back(step.loss);
    speed.push_back(step.tokens_per_second > 0 ? step.tokens_per_second : kNoNumber);
    memory.push_back(step.memory_bytes / kMiB);
    grad_norm.push_back(step.grad_norm);
    for (; ranks != run.files.ranks.end() && ranks->step <= step.step; ++ranks) {
      wait_places.step.push_back(static_cast<double>(ranks->step));
      wait_places.tokens.push_back(tokens);
      wait_places.seconds.push_back(seconds);
      waits.push_back(100 * ranks->wait_share);
    }
  }
  add_evals_before(std::numeric_limits<double>::infinity());
  Json curves{{"x", places.ends(most)},
              {"loss", thinned(loss, most, rounded_loss)},
              {"speed", thinned(speed, most)},
              {"memory", thinned(memory, most)},
              {"grad_norm", thinned(grad_norm, most)}};
  for (auto losses : run.files.source_losses) {
    losses.second.resize(loss.size(), kNoNumber);
    curves[std::string(kSourceCurve) + losses.first] = thinned(losses.second, most, rounded_loss);
  }
  for (auto values : run.files.means) {
    values.second.resize(loss.size(), kNoNumber);
    curves[std::string(kMeanCurve) + values.first] = thinned(values.second, most, rounded_loss);
  }
  if (!waits.empty()) {
    curves["ranks"] = thinned(waits, most);
    curves["ranks"]["x"] = wait_places.ends(most);
  }
  for (const auto& [key, curve] : evals) {
    curves[key] = thinned(curve.second, most, rounded_loss);
    curves[key]["x"] = curve.first.ends(most);
  }
  return curves;
}

/// The order of the table: that of --sort, else by the lowest loss in validation.
std::vector<std::size_t> order_of(const RunComparison& comparison) {
  auto order = comparison.in_order;
  if (!std::ranges::is_sorted(order)) return order;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const double loss = deciding_loss(comparison.runs[i]).best;
    return std::isfinite(loss) ? loss : std::numeric_limits<double>::infinity();
  });
  return order;
}

Json table_of(const RunComparison& comparison) {
  auto columns = Json::array(), rows = Json::array();
  auto all = columns_of(comparison);
  std::stable_partition(all.begin() + 1, all.end(), [](const TableColumn& column) { return column.is_setting; });
  for (const auto& column : all)
    columns.push_back({{"title", column.title}, {"is_text", !column.number}, {"high_is_good", column.high_is_good}});
  for (const auto i : order_of(comparison)) {
    auto cells = Json::array();
    for (const auto& column : all) {
      const auto& run = comparison.runs[i];
      cells.push_back({column.cell(run), column.number ? exact(column.number(run)) : Json(column.cell(run))});
    }
    rows.push_back({{"run", i}, {"cells", cells}});
  }
  return {{"columns", columns}, {"rows", rows}};
}

/// Options that differ, with the models' sizes first, and those that all runs share.
Json options_of(const RunComparison& comparison) {
  const auto& runs = comparison.runs;
  auto differ = Json::array(), alike = Json::array();
  Json sizes{{"name", "parameters"}, {"values", Json::array()}};
  for (const auto& run : runs) sizes["values"].push_back(parameters_text(run.files.parameters));
  differ.push_back(sizes);
  for (const auto& name : comparison.differ) {
    Json row{{"name", name}, {"values", Json::array()}};
    for (const auto& run : runs) row["values"].push_back(setting_of(run.files, name));
    differ.push_back(row);
  }
  for (const auto& [name, value] : runs.front().files.settings) {
    const auto is_alike = [&](const RunSummary& run) { return setting_of(run.files, name) == value; };
    if (!value.empty() && std::ranges::all_of(runs, is_alike)) alike.push_back({name, value});
  }
  return {{"differ", differ}, {"alike", alike}};
}

/// A picture of a sweep: the lowest validation loss of each run over the most important number that varies, if it has
/// three values or more; null otherwise. Runs without a loss have no point.
Json sweep_of(const RunComparison& comparison) {
  for (const auto& name : comparison.differ) {
    auto points = Json::array();
    std::set<double> values;
    bool are_numbers = true;
    for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
      const auto text = setting_of(comparison.runs[i].files, name);
      char* end = nullptr;
      const double value = std::strtod(text.c_str(), &end);
      are_numbers = are_numbers && !text.empty() && *end == '\0' && std::isfinite(value);
      const double loss = deciding_loss(comparison.runs[i]).best;
      if (!std::isfinite(loss)) continue;
      values.insert(value);
      points.push_back({i, value, rounded_loss(loss)});
    }
    if (are_numbers && values.size() >= 3) return {{"name", name}, {"points", points}};
  }
  return nullptr;
}

/// Samples of a run by prompt, oldest first, as many as fit `most_bytes`; the newest are always there.
Json samples_of(const fs::path& directory, std::size_t most_bytes) {
  std::map<std::int64_t, std::map<std::string, std::string>> steps;
  std::vector<std::string> prompts;
  std::size_t bytes = 0;
  const auto path = directory / "samples.jsonl";
  std::error_code error;
  std::ifstream in;
  if (fs::is_regular_file(path, error)) in.open(path);  // the opening of a FIFO would wait for its writer
  for (std::string line; in.is_open() && std::getline(in, line);) {
    const auto sample = Json::parse(line, nullptr, false);
    if (!sample.is_object() || !sample.contains("step") || !sample["step"].is_number_integer()) continue;
    if (!sample.contains("prompt") || !sample["prompt"].is_string() || !sample.contains("text") ||
        !sample["text"].is_string())
      continue;
    const auto prompt = sample["prompt"].get<std::string>();
    auto text = sample["text"].get<std::string>();
    if (text.size() > kLongestSample) text = printable(text.substr(0, kLongestSample)) + " …";
    bytes += text.size();
    if (std::ranges::find(prompts, prompt) == prompts.end()) prompts.push_back(prompt);
    steps[sample["step"].get<std::int64_t>()][prompt] = std::move(text);
  }
  const auto stride = bytes / most_bytes + 1;
  auto json = Json::array();
  for (const auto& prompt : prompts) json.push_back({{"prompt", prompt}, {"texts", Json::array()}});
  std::size_t newer = steps.size();
  for (const auto& [step, texts] : steps) {
    if (--newer % stride != 0) continue;
    for (std::size_t p = 0; p < prompts.size(); ++p)
      if (texts.contains(prompts[p])) json[p]["texts"].push_back({step, texts.at(prompts[p])});
  }
  return json;
}

/// Checkpoints in a run's folder.
class Checkpoints {
 public:
  explicit Checkpoints(const RunSummary& run) : run_(run), folder_(absolute(run.files.directory) / "checkpoints") {
    std::error_code error;
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
      const auto name = entry->path().filename().string();
      std::error_code ignored;
      if (name.starts_with("step-") && entry->is_directory(ignored)) names_.push_back(name);
    }
    std::ranges::sort(names_);
    best_ = fs::read_symlink(folder_ / "best", error).filename().string();
    latest_ = fs::read_symlink(folder_ / "latest", error).filename().string();
    if (!is_there(latest_)) latest_ = names_.empty() ? "" : names_.back();
    if (!is_there(best_)) best_ = lowest();
  }

  Json json() const {
    auto all = Json::array();
    for (const auto& name : names_) {
      Json one{{"name", name}, {"validation", rounded_loss(validation_at(step_of(name)))}};
      for (const auto& save : run_.files.saves)
        if (save.step == step_of(name)) one["bytes"] = format_bytes(save.bytes);
      one["best"] = name == best_;
      one["latest"] = name == latest_;
      all.push_back(one);
    }
    return {{"all", all}, {"use", use_command()}};
  }

  /// The command that goes on with the run from its newest checkpoint before a step; "" where there is none.
  std::string resume_command(std::int64_t before) const {
    const auto found =
        std::find_if(names_.rbegin(), names_.rend(), [&](const auto& name) { return step_of(name) < before; });
    if (found == names_.rend()) return "";
    const auto directory = folder_.parent_path();
    const auto ranks = run_.files.settings.find("ranks");
    const bool alone = ranks == run_.files.settings.end() || ranks->second == "1";
    return fmt::format("{}fsdp-finetune --out-dir {} --run-name {} --restart-checkpoint-file {}{}{}",
                       alone ? "" : fmt::format("mpiexec -n {} ", ranks->second),
                       shell_word(directory.parent_path().string()), shell_word(directory.filename().string()),
                       found == names_.rbegin() ? "latest" : shell_word((folder_ / *found).string()),
                       run_.files.repeated.empty() ? "" : " ", run_.files.repeated);
  }

 private:
  static fs::path absolute(const fs::path& path) {
    std::error_code error;
    auto whole = fs::weakly_canonical(path, error);
    return error ? path : whole;
  }

  bool is_there(const std::string& name) const { return std::ranges::find(names_, name) != names_.end(); }

  static std::int64_t step_of(const std::string& name) { return std::strtoll(name.c_str() + 5, nullptr, 10); }

  double validation_at(std::int64_t step) const {
    const auto set = deciding_loss(run_).set;
    double value = kNoNumber;
    for (const auto& eval : run_.files.evals)
      if (eval.is_loss && eval.set == set && eval.step == step) value = eval.value;
    return value;
  }

  /// The checkpoint with the lowest loss in validation; "" where no validation is known.
  std::string lowest() const {
    std::string best;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& name : names_) {
      const double loss = validation_at(step_of(name));
      if (loss >= least || !std::isfinite(loss)) continue;
      least = loss;
      best = name;
    }
    return best;
  }

  /// The first path of --val-data, whose value is a path or NAME=PATH,NAME=PATH.
  static std::string first_path(const std::string& sets) {
    constexpr const char* kName = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const auto path_at = [&](std::size_t begin) {
      const auto end = sets.find_first_not_of(kName, begin);
      return end != sets.npos && end > begin && sets[end] == '=' ? end + 1 : begin;
    };
    const auto begin = path_at(0);
    std::error_code error;
    if (begin == 0 || fs::exists(sets, error)) return sets;
    auto comma = sets.find(',', begin);
    while (comma != sets.npos && path_at(comma + 1) == comma + 1) comma = sets.find(',', comma + 1);
    return sets.substr(begin, comma - begin);
  }

  /// The option of the run where its value is not the default one, for a command line.
  std::string option(const std::string& name, const char* otherwise = "") const {
    const auto found = run_.files.settings.find(name);
    if (found == run_.files.settings.end() || found->second.empty() || found->second == otherwise) return "";
    return " --" + name + " " + shell_word(found->second);
  }

  /// The command that asks the best or else the newest checkpoint for the text or the loss that the run itself was
  /// asked for.
  std::string use_command() const {
    const auto& name = best_.empty() ? latest_ : best_;
    if (name.empty()) return "";
    auto command = "fsdp-eval " + shell_word((folder_ / name).string());
    if (!option("val-data").empty() && option("sample-prompt").empty()) {
      return command + " --data " + shell_word(first_path(run_.files.settings.at("val-data"))) + option("data-field") +
             option("data-form", "auto") + option("chat-template") + option("train-on", "answers") +
             option("pairs", "joint") + option("marks", "tokens") + option("seq-len", "0");
    }
    const auto samples = samples_of(run_.files.directory, kSampleBytes);
    const auto prompt = samples.empty() ? "Once upon a time" : samples[0]["prompt"].get<std::string>();
    command += " --prompt " + shell_word(prompt);
    const bool is_chat = !option("sample-chat", "false").empty();
    return command + (is_chat ? " --chat" + option("chat-template") : "");
  }

  const RunSummary& run_;
  fs::path folder_;
  std::vector<std::string> names_;  ///< sorted
  std::string best_, latest_;
};

/// Finds the problems of a run, what to do about each, and the command for it.
class Problems {
 public:
  /// \param found  array that problems are added to
  /// \param whose  what a problem's text begins with: the name of one of pooled runs
  Problems(std::size_t index, const RunSummary& run, Json& found, std::string whose = "")
      : index_(index), run_(run), found_(found), whose_(std::move(whose)) {}

  void find(const Checkpoints& checkpoints) {
    if (run_.runs == 1) state(checkpoints);
    for (const auto& one : run_.unfinished)
      Problems(index_, one, found_, printable(one.files.name) + ": ").state(Checkpoints(one));
    steps();
    if (run_.files.alloc_retries > 0)
      add(fmt::format("Steps stopped for {:.0f} alloc retries: the GPU's memory is nearly full.",
                      run_.files.alloc_retries),
          "Take a smaller --batch-size (the total batch stays with --total-batch-size), or recompute activations.");
    if (run_.files.bad_lines > 0)
      add(format_count_of(run_.files.bad_lines, "line") + " of metrics.jsonl are no records and were passed over.",
          "Look whether the disk was full, or whether another program wrote into the file.");
    if (!run_.files.ended_early.empty()) add("It ended before its last step: " + run_.files.ended_early, "");
  }

 private:
  void add(const std::string& what, const std::string& remedy, const std::string& command = "") {
    found_.push_back({{"run", index_}, {"what", whose_ + what}, {"remedy", remedy}, {"command", command}});
  }

  void state(const Checkpoints& checkpoints) {
    const auto& f = run_.files;
    const auto last = f.steps.empty() ? 0 : f.steps.back().step;
    const auto where = fmt::format("step {} of {}", last, f.total_steps > 0 ? std::to_string(f.total_steps) : "?");
    const bool failed = f.state == RunStatus::failed;
    const auto resume =
        checkpoints.resume_command(failed ? first_without_loss() : std::numeric_limits<std::int64_t>::max());
    const std::string again =
        resume.empty() ? "It has no checkpoint: start it again, with --save-every." : "Resume it:";
    if (failed) {
      add(fmt::format("The loss is no number since step {}.", first_without_loss()),
          (resume.empty() ? "Start it again" : "Resume from a checkpoint before that step") +
              std::string(
                  " with a lower --lr, a longer --warmup-steps or a smaller --clip-grad-norm; look at the gradient "
                  "norm before it."),
          resume);
    } else if (f.state == RunStatus::ended) {
      add("Its job ended without a last word after " + where + ": it was killed, or met an error.",
          "The job's log says why: most often memory, the time limit or a node. " + again, resume);
    } else if (f.state == RunStatus::stopped) {
      add("It was stopped in order after " + where + ".", again, resume);
    } else if (f.state == RunStatus::silent) {
      add("Nothing was heard of its job for two minutes, after " + where + ".",
          "See whether the job still runs (" + f.owner + "). If it does not: " + again, resume);
    }
  }

  void steps() {
    const auto skipped = std::ranges::count_if(run_.files.steps, [](const StepLine& step) { return step.skipped; });
    if (skipped > 0 && run_.files.state != RunStatus::failed)
      add(format_count_of(skipped, "step") + " changed nothing, because the loss or the gradient norm was not finite.",
          "A few are usual with fp16, whose loss scale adapts. Otherwise lower --lr, or take bf16.");
  }

  std::int64_t first_without_loss() const {
    std::int64_t first = 0;
    const auto& steps = run_.files.steps;
    for (auto step = steps.rbegin(); step != steps.rend() && !std::isfinite(step->loss); ++step) first = step->step;
    return first;
  }

  std::size_t index_;
  const RunSummary& run_;
  Json& found_;
  std::string whose_;
};

Json page_data(const RunComparison& comparison, int renew_seconds) {
  const auto& runs = comparison.runs;
  const auto most = std::clamp(kCurvePoints / runs.size(), std::size_t{100}, kMostOfARun);
  const auto dashes = dashes_of(picture_of(comparison));
  Json data{
      {"version", FSDP_VERSION},
      {"written", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                              fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())))},
      {"renew_seconds", renew_seconds},
      {"sentences", comparison_sentences(comparison)},
      {"panels", panels_of(comparison)},
      {"table", table_of(comparison)},
      {"options", options_of(comparison)},
      {"sweep", sweep_of(comparison)},
      {"runs", Json::array()},
      {"problems", Json::array()}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Checkpoints checkpoints(runs[i]);
    const auto& f = runs[i].files;
    data["runs"].push_back({{"name", printable(runs[i].label)},
                            {"state", to_string(f.state)},
                            {"dash", {dashes[i].on, dashes[i].off, dashes[i].offset}},
                            {"curves", curves_of(runs[i], most)},
                            {"samples", samples_of(f.directory, kSampleBytes / runs.size())},
                            {"checkpoints", checkpoints.json()}});
    Problems(i, runs[i], data["problems"]).find(checkpoints);
  }
  return data;
}

/// JSON that can stand within <script>: no "</script>" or "<!--" is in it.
std::string script_json(const Json& json) {
  std::string text;
  for (const char c : printable_json(json)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<' || c == '&') {
      escaped += c == '<' ? "&lt;" : "&amp;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

/// The one run, the folder in which all runs are, or else the runs as long as they are few.
std::string title_of(const RunComparison& comparison) {
  const auto& runs = comparison.runs;
  std::set<fs::path> folders;
  std::string names;
  for (const auto& run : runs) {
    std::error_code error;
    const auto place = fs::absolute(run.files.directory, error).lexically_normal();
    folders.insert((place.has_filename() ? place : place.parent_path()).parent_path());
    names += (names.empty() ? "" : ", ") + printable(run.label);
  }
  if (runs.size() == 1) return names;
  const auto count = format_count_of(std::ssize(runs), "run");
  if (folders.size() == 1) return fmt::format("{}: {}", printable(folders.begin()->filename().string()), count);
  constexpr std::size_t longest = 60;
  return names.size() <= longest ? names : count;
}

std::string color_rule() {
  std::string light, dark;
  for (std::size_t i = 0; i < kRunColors.size(); ++i) {
    light += fmt::format("--run{}:{};", i, kRunColors[i].hex());
    dark += fmt::format("--run{}:{};", i, kDarkColors[i]);
  }
  return fmt::format(":root{{{}}}@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}", light, dark);
}

}  // namespace

std::string run_comparison_to_html(const RunComparison& comparison, int renew_seconds) {
  const auto title = title_of(comparison);
  const std::map<std::string_view, std::string> parts{{"title", html_text(title)},
                                                      {"colors", color_rule()},
                                                      {"data", script_json(page_data(comparison, renew_seconds))},
                                                      {"text", html_text(run_comparison_to_text(comparison))}};
  std::string page;
  std::string_view rest = kReportPage;
  for (auto at = rest.find("{{"); at != rest.npos; at = rest.find("{{")) {
    const auto end = rest.find("}}", at);
    page += rest.substr(0, at);
    page += parts.at(rest.substr(at + 2, end - at - 2));
    rest.remove_prefix(end + 2);
  }
  return page.append(rest);
}

}  // namespace fsdp
