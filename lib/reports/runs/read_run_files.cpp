#include "lib/reports/runs/read_run_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/files/claim.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/reports/runs/step_report.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kLargestNote = 16 << 20;  // bytes of job.json and similar files
// seconds without an update after which a claim counts as stale; a running job updates it every 15 s
constexpr double kHeartbeatSilence = 120;
constexpr std::size_t kRememberedBytes = 255;  // tail of the parsed part, to detect that the file was replaced

double number(const Json& json, const char* key, double otherwise = kNoNumber) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::int64_t whole(const Json& json, const char* key, std::int64_t otherwise = 0) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : otherwise;
}

std::string words(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Json object(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_object() ? *found : Json::object();
}

bool flag(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

/// Returns an empty object when the file is missing or holds something else.
Json read_note(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return Json::object();
  try {
    auto json = parse_json_or_discard(read_text(File::open_read(path), kLargestNote), path.string());
    return json.is_object() ? json : Json::object();
  } catch (const Error&) {
    return Json::object();
  }
}

/// \return bytes that the engine has received since its job started; -1 when not recorded
double received_since_start(const Json& record) {
  const auto all = record.find("collectives");
  if (all == record.end() || !all->is_object()) return -1;
  double sum = -1;
  for (const char* axis : {"shard", "replicate"}) {
    const auto counts = all->find(axis);
    if (counts == all->end() || !counts->is_object()) continue;
    if (const double bytes = number(*counts, "bytes", -1); bytes >= 0) sum = std::max(0.0, sum) + bytes;
  }
  return sum;
}

/// Adds the records of metrics.jsonl to a run.
class RecordReader {
 public:
  RecordReader(RunFiles& run, RunReader::Between& between) : run_(run), between_(between) {}

  void line(const std::string& text, bool complete) {
    const auto record = Json::parse(text, nullptr, false);
    if (!record.is_object() || !record.contains("step")) {
      if (complete && !text.empty()) ++run_.bad_lines;
      return;
    }
    if (record.contains("val_loss")) {
      run_.evals.push_back({words(record, "val_set"), whole(record, "step"), number(record, "val_loss")});
      // The curves of the training tell as much about the others.
      const auto means = object(record, kValMeansKey);
      for (const auto& [name, mean] : means.items()) {
        if (!is_accuracy(name)) continue;
        const auto set = words(record, "val_set");
        run_.evals.push_back(
            {(set.empty() ? "" : set + ": ") + name, whole(record, "step"), number(means, name.c_str()), false, true});
      }
      between_.after_a_break = true;
    } else if (record.contains("chess_games")) {
      for (const auto& metric : kEvalMetrics) {
        if (metric.of_games && record.contains(metric.key))
          run_.evals.push_back({metric.key, whole(record, "step"), number(record, metric.key), false, true});
      }
      between_.after_a_break = true;
    } else if (const auto tasks = object(record, kTasksKey); !tasks.empty()) {
      for (const auto& [name, figure] : tasks.items()) {
        if (!figure.is_object()) continue;
        run_.evals.push_back(
            {name, whole(record, "step"), number(figure, "value"), false, flag(figure, "higher_is_better")});
      }
      between_.after_a_break = true;
    } else if (record.contains("loss")) {
      step(record);
    } else if (const auto ranks = object(record, kRanksKey); !ranks.empty()) {
      run_.ranks.push_back(
          {whole(record, "step"), whole(ranks, "slowest"), number(ranks, kWaitShareKey), words(ranks, "cause")});
    }
  }

 private:
  void step(const Json& record) {
    StepLine line;
    line.step = whole(record, key_of(&StepReport::step));
    line.loss = number(record, key_of(&StepReport::loss));
    line.tokens = number(record, key_of(&StepReport::tokens), 0);
    line.seconds = number(record, key_of(&StepReport::seconds), 0);
    line.tokens_per_second = number(record, key_of(&StepReport::tokens_per_second), 0);
    line.mfu = number(record, key_of(&StepReport::mfu));
    line.grad_norm = number(record, key_of(&StepReport::grad_norm));
    line.memory_bytes =
        number(record, key_of(&StepReport::reserved_bytes), number(record, key_of(&StepReport::peak_memory_bytes)));
    line.saving = flag(record, "saving");
    line.skipped = flag(record, "skipped");
    line.after_a_break = between_.after_a_break;
    between_.after_a_break = false;
    const double received = received_since_start(record);
    // Older files have no step count per job; a reset of the collectives' counter marks the start of a job.
    const bool new_job = run_.steps.empty() || received < between_.received;
    line.job_step = whole(record, "job_step", new_job ? 1 : run_.steps.back().job_step + 1);
    line.received_bytes = line.job_step == 1 || received < 0 ? received : received - between_.received;
    between_.received = received;
    run_.steps.push_back(line);
    const auto sources = object(record, kSourcesKey);
    for (const auto& [name, source] : sources.items()) {
      if (source.is_object()) add_to_curve(run_.source_losses[name], number(source, "loss"));
    }
    const auto means = object(record, kMeansKey);
    for (const auto& [name, mean] : means.items()) add_to_curve(run_.means[name], number(means, name.c_str()));
    run_.products = words(record, "products");
    run_.resident_bytes = number(record, key_of(&StepReport::peak_rss_bytes));
    run_.peak_bytes = line.memory_bytes;
    run_.alloc_retries = number(record, key_of(&StepReport::alloc_retries));
  }

  /// A source may be new in a later job, and rest in another.
  void add_to_curve(std::vector<double>& values, double value) const {
    values.resize(run_.steps.size(), kNoNumber);
    values.back() = value;
  }

  RunFiles& run_;
  RunReader::Between& between_;
};

void read_memory(RunFiles& run) {
  const auto memory = read_note(run.directory / "memory.json");
  run.predicted_bytes = number(memory, "predicted_bytes", run.predicted_bytes);
  run.peak_bytes = number(memory, "measured_bytes", run.peak_bytes);
  run.card_bytes = number(memory, "card_bytes", 0);
}

/// Takes settings from what the job trained: the command line of a job that resumes a run names neither model nor
/// adapters.
void read_model(const Json& job, RunFiles& run) {
  constexpr std::array<std::array<const char*, 3>, 4> sizes{{{"num-layers", "n_layer", "num_hidden_layers"},
                                                             {"num-heads", "n_head", "num_attention_heads"},
                                                             {"embed-size", "n_embd", "hidden_size"},
                                                             {"vocab-size", "vocab_size", "vocab_size"}}};
  const auto model = object(job, "model");
  for (const auto& [option, ours, theirs] : sizes) {
    for (const char* key : {ours, theirs})
      if (model.contains(key)) run.settings[option] = std::to_string(whole(model, key));
  }
  const auto data = object(job, "data");
  if (const auto weights = words(data, "weights");
      !weights.empty() && run.settings.contains("model") && run.settings.at("model") == "mingpt")
    run.settings["model"] = weights;
  if (const auto adapter = object(data, "adapter"); adapter.contains("r"))
    run.settings["lora-rank"] = std::to_string(whole(adapter, "r"));
  if (const auto type = words(object(data, "quantize"), "type"); !type.empty()) run.settings["quantize"] = type;
}

/// Settings of the newest job or, for older programs, of the newest checkpoint.
void read_settings(RunFiles& run) {
  auto job = read_note(run.directory / "job.json");
  const bool is_job = words(job, "format") == "fsdp-job";
  if (!is_job) job = read_note(run.directory / "checkpoints" / "latest" / "run.json");
  const auto options = object(job, "options");
  for (const auto& [name, value] : options.items()) {
    if (value.is_string()) run.settings[name] = value.get<std::string>();
  }
  if (!run.settings.empty()) read_model(job, run);
  const auto repeated = job.value("repeated", Json::array());
  for (const auto& word : repeated)
    if (word.is_string()) run.repeated += (run.repeated.empty() ? "" : " ") + word.get<std::string>();
  if (job.contains("world_size")) run.settings["ranks"] = std::to_string(whole(job, "world_size"));
  if (job.contains("nodes")) run.settings["nodes"] = std::to_string(whole(job, "nodes"));
  if (job.contains("device")) run.settings["gpu"] = words(job, "device");
  if (job.contains("rows_per_step")) run.settings["total-batch-size"] = std::to_string(whole(job, "rows_per_step"));
  run.parameters = number(job, "parameters");
  run.total_steps = whole(job, "total_steps");
  if (const double predicted = number(job, "predicted_bytes", 0); predicted > 0) run.predicted_bytes = predicted;
  run.save_every = whole(job, "save_every", -1);
  run.save_interval_seconds = 60 * number(job, "save_interval_minutes", 0);
  run.saves_at_the_end = flag(job, "final_save");
  run.last_save_time = number(job, "started");
  const auto saves = job.value("saves", Json::array());
  for (const auto& save : saves) {
    if (!save.is_object()) continue;
    run.last_save_time = number(save, "started", run.last_save_time);
    run.saves.push_back(
        {whole(save, "step"), number(save, "bytes", 0), number(save, "seconds", 0), number(save, "waited_seconds", 0)});
  }
  run.ended_early = words(job, "ended_early");
  if (words(job, "outcome") == "done") run.state = RunStatus::done;
  if (words(job, "outcome") == "pruned") run.state = RunStatus::pruned;
  if (words(job, "outcome") == "stopped") run.state = RunStatus::stopped;
}

/// Derives the state from the claim on the folder if the job did not record how it ended.
void judge_state(RunFiles& run) {
  const auto folder = run.directory / ".owner";
  std::uint64_t newest = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (!name.starts_with("claim.") || name.size() > 16) continue;
    const auto digits = name.substr(6);
    if (!digits.empty() && std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); }))
      newest = std::max<std::uint64_t>(newest, std::stoull(digits));
  }
  const bool all_steps = run.total_steps > 0 && !run.steps.empty() && run.steps.back().step >= run.total_steps;
  if (newest == 0) {
    if (run.state == RunStatus::unknown && all_steps) run.state = RunStatus::done;
    return;
  }
  if (owner_state(folder, newest) == OwnerState::gone) {
    if (run.state == RunStatus::unknown && run.total_steps > 0)
      run.state = all_steps ? RunStatus::done : RunStatus::ended;
    return;
  }
  const auto beat = fs::last_write_time(folder / fmt::format("claim.{}", newest), error);
  const auto silence = std::chrono::duration<double>(fs::file_time_type::clock::now() - beat).count();
  run.owner = owner_words(folder, newest);
  run.state = !error && silence < kHeartbeatSilence ? RunStatus::running : RunStatus::silent;
}

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "metrics.jsonl", error) || fs::is_regular_file(folder / "job.json", error);
}

/// Compares names with numbers by value: "batch-2" sorts before "batch-10".
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0, k = 0;
  while (i < a.size() && k < b.size()) {
    if (digit(a[i]) && digit(b[k])) {
      const auto number_at = [&](const std::string& text, std::size_t& at) {
        while (at + 1 < text.size() && text[at] == '0' && digit(text[at + 1])) ++at;
        const auto begin = at;
        while (at < text.size() && digit(text[at])) ++at;
        return text.substr(begin, at - begin);
      };
      const auto x = number_at(a, i), y = number_at(b, k);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else if (a[i] != b[k]) {
      return a[i] < b[k];
    } else {
      ++i;
      ++k;
    }
  }
  return a.size() - i < b.size() - k || (a.size() - i == b.size() - k && a < b);
}

std::vector<fs::path> runs_below(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_run(entry->path())) found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return natural_less(a.filename().string(), b.filename().string());
  });
  return found;
}

}  // namespace

const char* to_string(RunStatus state) {
  switch (state) {
    case RunStatus::done:
      return "done";
    case RunStatus::pruned:
      return "pruned";
    case RunStatus::stopped:
      return "stopped";
    case RunStatus::ended:
      return "ended";
    case RunStatus::failed:
      return "failed";
    case RunStatus::running:
      return "running";
    case RunStatus::silent:
      return "silent";
    case RunStatus::unknown:
      break;
  }
  return "unknown";
}

std::vector<fs::path> find_runs(const std::vector<std::string>& paths) {
  std::vector<fs::path> found;
  std::set<fs::path> seen;
  for (const auto& text : paths) {
    fs::path path(text);
    std::error_code error;
    if (path.filename() == "metrics.jsonl") path = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if (!fs::exists(path, error)) throw MissingInput(text + ": is not there; a run's folder is OUT-DIR/RUN-NAME");
    auto more = is_run(path) ? std::vector<fs::path>{path} : runs_below(path);
    if (more.empty()) {
      throw MissingInput(text +
                         ": holds no run: expected metrics.jsonl of fsdp-finetune in it, or folders that have one");
    }
    for (const auto& run : more) {
      if (seen.insert(fs::weakly_canonical(run, error)).second) found.push_back(run);
    }
  }
  return found;
}

RunReader::RunReader(fs::path directory) : directory_(std::move(directory)) {}

/// Starts over when the file was replaced or its parsed part has changed.
void RunReader::forget_unless_appended(const fs::path& path, std::ifstream& in) {
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) now = {};
  std::string before(end_.size(), '\0');
  in.seekg(static_cast<std::streamoff>(offset_ - end_.size()));
  in.read(before.data(), static_cast<std::streamsize>(before.size()));
  if (!in || before != end_ || now.st_dev != device_ || now.st_ino != inode_) {
    metrics_ = {};
    between_ = {};
    end_.clear();
    offset_ = 0;
  }
  device_ = now.st_dev;
  inode_ = now.st_ino;
  in.clear();
  in.seekg(static_cast<std::streamoff>(offset_));
}

RunFiles RunReader::read_metrics() {
  const auto path = directory_ / "metrics.jsonl";
  std::error_code error;
  if (!fs::exists(path, error)) return {};  // before the first step
  if (!fs::is_regular_file(path, error)) throw IoError(path.string() + ": is no regular file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw IoError(path.string() + ": cannot be read");
  forget_unless_appended(path, in);
  RecordReader records(metrics_, between_);
  std::string line;
  while (std::getline(in, line) && !in.eof()) {
    records.line(line, true);
    offset_ += line.size() + 1;
    end_ = (line + "\n").substr(line.size() - std::min(line.size(), kRememberedBytes));
  }
  if (in.bad()) throw IoError(path.string() + ": cannot be read to its end");
  auto run = metrics_;
  if (!line.empty() && in.eof()) {  // incomplete line; the next read() may find its end
    auto between = between_;
    RecordReader(run, between).line(line, false);
  }
  const auto written = fs::last_write_time(path, error);
  if (!error) run.age_seconds = std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count();
  if (!run.steps.empty() && !between_.after_a_break) run.step_age_seconds = run.age_seconds;
  return run;
}

RunFiles RunReader::read() {
  auto run = read_metrics();
  run.directory = directory_;
  std::error_code error;
  const auto whole_path = fs::weakly_canonical(directory_, error);
  run.name = (error ? directory_ : whole_path).filename().string();
  read_settings(run);
  read_memory(run);
  judge_state(run);
  const bool is_over = run.state != RunStatus::running && run.state != RunStatus::silent;
  if (is_over && !run.steps.empty() && !std::isfinite(run.steps.back().loss)) run.state = RunStatus::failed;
  run.nodes = read_node_status(directory_);
  // metrics.jsonl was last written at the end of a validation: the first rank's record is older, but of the step.
  if (!run.nodes.empty() && !std::isfinite(run.step_age_seconds))
    run.step_age_seconds = run.nodes.front().age_seconds + run.nodes.front().ranks.front().step_age_seconds;
  return run;
}

RunFiles read_run(const fs::path& directory) { return RunReader(directory).read(); }

}  // namespace fsdp
