#include "apps/eval/tasks_job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "lib/base/files/output_file.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/benchmarks/results/task_results.hpp"
#include "lib/benchmarks/tasks/request_ids.hpp"
#include "lib/benchmarks/tasks/task_catalog.hpp"
#include "lib/benchmarks/tasks/task_questions.hpp"
#include "lib/benchmarks/tasks/task_rows.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/snapshot_store.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/templates/chat/chat_template.hpp"
#include "lib/training/evaluate/generation_ends.hpp"
#include "lib/training/evaluate/written_text.hpp"
#include "lib/training/requests/answer_prompts.hpp"
#include "lib/training/requests/score_requests.hpp"

namespace fsdp {
namespace {

/// The files of fsdp-download --tasks come before others of the repository.
std::filesystem::path find_dataset(const std::string& path) {
  const auto settings = hub_settings(process_environment());
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  try {
    return find_snapshot(fmt::format("{}@{}", path, kParquetRevision), RepoType::dataset, settings);
  } catch (const MissingInput&) {
  }
  try {
    return find_snapshot(path, RepoType::dataset, settings);
  } catch (const MissingInput& missing) {
    throw MissingInput(fmt::format("{}; fsdp-download --tasks fetches what tasks need", missing.what()));
  }
}

/// Turns by the chat template, up to the answer or on in it. Source: continue_final_message of transformers 5.23
TurnWriter turn_writer(const std::shared_ptr<const ChatTemplate>& chat) {
  return [chat](const std::vector<PromptTurn>& turns, bool continues) {
    Conversation conversation;
    conversation.messages = nlohmann::ordered_json::array();
    for (const auto& turn : turns)
      conversation.messages.push_back(nlohmann::ordered_json{{"role", turn.role}, {"content", turn.content}});
    auto text = chat->render(conversation, turns.size(), continues ? NextTurn::none : NextTurn::assistant).text;
    if (!continues) return text;
    const auto& last = turns.back().content;
    const auto begin = last.find_first_not_of(" \t\r\n"), end = last.find_last_not_of(" \t\r\n");
    const auto core = begin == std::string::npos ? std::string() : last.substr(begin, end + 1 - begin);
    const auto at = text.rfind(core);
    if (core.empty() || at == std::string::npos)
      throw FormatError(chat->title() + " does not write the beginning of the answer (gen_prefix) as it is");
    const auto whole = last.substr(begin);
    text.resize(at + (text.compare(at, whole.size(), whole) == 0 ? whole.size() : core.size()));
    return text;
  };
}

/// The requests of all tasks, for all ranks.
struct SharedRequests {
  std::vector<ScoreRequest> scored;
  std::vector<AskedPrompt> prompts;
};

void put(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& ids) {
  to.push_back(static_cast<std::int32_t>(ids.size()));
  to.insert(to.end(), ids.begin(), ids.end());
}
std::vector<std::int32_t> take(std::span<const std::int32_t>& from) {
  const auto count = static_cast<std::size_t>(from.front());
  std::vector<std::int32_t> ids(from.begin() + 1, from.begin() + 1 + from.front());
  from = from.subspan(count + 1);
  return ids;
}

/// Gives rank 0's requests to all ranks. Collective.
void share(ProcessGroup& world, SharedRequests& requests) {
  if (world.size() == 1) return;
  std::vector<std::int32_t> flat;
  auto stops = nlohmann::json::array();
  flat.push_back(static_cast<std::int32_t>(requests.scored.size()));
  for (const auto& request : requests.scored) {
    put(flat, request.context);
    put(flat, request.continuation);
  }
  for (const auto& prompt : requests.prompts) {
    put(flat, prompt.ids);
    flat.push_back(static_cast<std::int32_t>(prompt.most_tokens));
    stops.push_back(prompt.stops);
  }
  const nlohmann::json sizes{{"ids", flat.size()}, {"stops", stops}};
  const auto told = nlohmann::json::parse(world.broadcast_text(sizes.dump(), 0));
  flat.resize(told["ids"].get<std::size_t>());
  world.broadcast(std::as_writable_bytes(std::span(flat)), 0);
  if (world.rank() == 0) return;
  std::span<const std::int32_t> rest(flat);
  requests.scored.resize(static_cast<std::size_t>(rest.front()));
  rest = rest.subspan(1);
  for (auto& request : requests.scored) {
    request.context = take(rest);
    request.continuation = take(rest);
  }
  for (const auto& of_prompt : told["stops"]) {
    auto& prompt = requests.prompts.emplace_back();
    prompt.ids = take(rest);
    prompt.most_tokens = rest.front();
    rest = rest.subspan(1);
    prompt.stops = of_prompt.get<std::vector<std::string>>();
  }
}

/// Gives rank 0's figures to all ranks. Collective.
void share(ProcessGroup& world, std::vector<Metric>& metrics) {
  auto all = nlohmann::json::array();
  std::vector<double> influence;
  for (const auto& one : metrics) {
    all.push_back({one.name, one.higher_is_better, one.estimate.influence.size(), one.estimate.units});
    influence.push_back(one.estimate.value);
    influence.insert(influence.end(), one.estimate.influence.begin(), one.estimate.influence.end());
  }
  const auto told = nlohmann::json::parse(world.broadcast_text(nlohmann::json{influence.size(), all}.dump(), 0));
  influence.resize(told[0].get<std::size_t>());
  world.broadcast(std::as_writable_bytes(std::span(influence)), 0);
  metrics.clear();
  auto next = influence.begin();
  for (const auto& one : told[1]) {
    Metric metric{one[0].get<std::string>(), one[1].get<bool>(), {}};
    metric.estimate.value = *next++;
    metric.estimate.influence.assign(next, next + one[2].get<std::ptrdiff_t>());
    metric.estimate.units = one[3].get<std::int64_t>();
    next += one[2].get<std::ptrdiff_t>();
    metrics.push_back(std::move(metric));
  }
}

/// "TASK.METRIC", or "TASK.METRIC,FILTER" for another filter than that which passes all on.
std::string metric_name(const std::string& task, const std::string& metric, const std::string& filter) {
  return task + "." + metric + (filter == "none" ? "" : "," + filter);
}

/// \throws UsageError for a gate on a metric that no task has
void require_metrics(const std::vector<Gate>& gates, const TaskSelection& selection) {
  std::vector<std::string> names;
  for (const auto& task : selection.tasks) {
    for (const auto& metric : task.metrics) {
      for (const auto& filter : task.filters) names.push_back(metric_name(task.name, metric.name, filter.name));
    }
  }
  for (const auto& group : selection.groups) {
    for (const auto& metric : group.metrics) {
      for (const auto& filter : metric.filters.value_or(std::vector<std::string>{"none"}))
        names.push_back(metric_name(group.name, metric.metric, filter));
    }
  }
  for (const auto& gate : gates) {
    if (!gate.is_of_task() || std::find(names.begin(), names.end(), gate.metric) != names.end()) continue;
    throw UsageError(
        fmt::format("--gate {}: the tasks have no such metric, but {}", gate.text, fmt::join(names, ", ")));
  }
}

/// Where the answer to a request comes from: scores [first, first + count), or a prompt.
struct AnswerPlace {
  std::size_t first = 0, count = 0;
};

/// The requests of a task's questions as ids.
class RequestList {
 public:
  RequestList(const RequestEncoder& encoder, SharedRequests& shared) : encoder_(encoder), shared_(shared) {}

  /// \return by question and request. \throws FormatError naming the task's file and row
  std::vector<std::vector<AnswerPlace>> add(const Task& task, const TaskQuestions& asked, const std::string& end_text) {
    std::vector<std::vector<AnswerPlace>> places;
    for (const auto& question : asked.questions) {
      auto& of_question = places.emplace_back();
      for (std::size_t i = 0; i < question.requests.size(); ++i) {
        try {
          of_question.push_back(add(task, question.requests[i], end_text));
        } catch (const FormatError& error) {
          const auto choice =
              question.requests.size() > 1 ? fmt::format(", choice {}", i % question.choices.size()) : "";
          throw FormatError(
              fmt::format("{}: row {} of {}{}: {}", task.file, question.row, task.asked_split(), choice, error.what()));
        }
      }
    }
    return places;
  }

  /// Contexts and prompts whose beginning the model does not see.
  std::int64_t cut() const { return cut_; }

 private:
  AnswerPlace add(const Task& task, const TaskRequest& request, const std::string& end_text) {
    if (task.output == TaskOutput::generate_until) {
      AskedPrompt prompt;
      bool was_cut = false;
      prompt.ids = encoder_.prompt(request.context, task.generation.max_gen_toks, was_cut);
      prompt.most_tokens = task.generation.max_gen_toks;
      prompt.stops = task.generation.until;
      if (!end_text.empty()) prompt.stops.push_back(end_text);
      cut_ += was_cut ? 1 : 0;
      shared_.prompts.push_back(std::move(prompt));
      return {shared_.prompts.size() - 1, 1};
    }
    std::vector<ScoredIds> scored;
    if (task.output == TaskOutput::loglikelihood_rolling) {
      scored = encoder_.windows(request.continuation);
    } else {
      scored.push_back(encoder_.pair(request.context, request.continuation));
      cut_ += scored.front().was_cut ? 1 : 0;
    }
    const AnswerPlace place{shared_.scored.size(), scored.size()};
    for (auto& ids : scored) shared_.scored.push_back({std::move(ids.context), std::move(ids.continuation)});
    return place;
  }

  const RequestEncoder& encoder_;
  SharedRequests& shared_;
  std::int64_t cut_ = 0;
};

/// The model's answers to the requests of all tasks, on every rank.
struct Answers {
  std::vector<RequestScore> scores;
  std::vector<std::string> texts;
};

/// The questions of all tasks, on rank 0, and their requests.
struct Asked {
  std::vector<AnsweredTask> tasks;
  std::vector<std::vector<std::vector<AnswerPlace>>> places;  ///< by task, question and request
  SharedRequests requests;
  std::int64_t cut = 0;  ///< requests whose beginning the model does not see

  /// Gives the answers to the questions.
  void take(const Answers& answers) {
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      for (const auto& of_question : places[t]) {
        auto& to = tasks[t].answers.emplace_back();
        for (const auto& place : of_question) to.push_back(answer_at(tasks[t].task, place, answers));
      }
    }
  }

 private:
  static TaskAnswer answer_at(const Task& task, const AnswerPlace& place, const Answers& answers) {
    TaskAnswer answer;
    if (task.output == TaskOutput::generate_until) {
      answer.text = json_text(answers.texts[place.first]).get<std::string>();
      return answer;
    }
    answer.is_greedy = true;
    for (auto i = place.first; i < place.first + place.count; ++i) {
      answer.log_likelihood += answers.scores[i].log_likelihood;
      answer.is_greedy = answer.is_greedy && answers.scores[i].is_greedy;
    }
    return answer;
  }
};

/// Asks the model. Collective.
Answers answers_of(ModelRuntime& runtime, const TasksJob::Run& run, const SharedRequests& requests, const Logger& log) {
  constexpr double kSecondsBetweenLines = 30;
  Progress progress(log, run.show_progress, kSecondsBetweenLines);
  const auto shown = [&](const char* what, std::size_t count) {
    return [&progress, what, count](double done) {
      progress.show_share(what, done,
                          fmt::format("{} of {}", format_count(std::llround(done * static_cast<double>(count))),
                                      format_count(static_cast<std::int64_t>(count))));
    };
  };
  Answers answers;
  if (!requests.scored.empty()) {
    answers.scores = score_requests(runtime, requests.scored,
                                    {run.batch_size, run.alike, shown("requests ", requests.scored.size())});
  }
  const auto& tokenizer = *run.subject.tokenizer;
  auto ends = generation_ends({run.subject.adapter, run.subject.path, run.subject.tokenizer_name});
  if (const auto eos = tokenizer.eos_id()) ends.push_back(*eos);
  answers.texts = answer_prompts(runtime, tokenizer, requests.prompts, ends, run.batch_size,
                                 shown("prompts  ", requests.prompts.size()));
  return answers;
}

std::vector<Metric> metrics_of(const TaskResults& results) {
  std::vector<Metric> metrics;
  for (const auto& scored : results.scores()) {
    for (const auto& score : scored.scores) {
      Metric metric{metric_name(scored.name, score.metric, score.filter), score.higher_is_better, {}};
      metric.estimate.value = score.figure.value;
      if (!score.by_question.empty()) {
        const std::vector<double> ones(score.by_question.size(), 1.0);
        metric.estimate = ratio(score.by_question, ones);
      }
      metrics.push_back(std::move(metric));
    }
  }
  return metrics;
}

}  // namespace

std::vector<std::string> list_tasks(const TaskOptions& options) {
  TaskCatalog catalog;
  for (const auto& folder : options.include_paths) catalog.add_folder(folder);
  std::vector<std::string> lines;
  for (const auto& [name, what] : catalog.list()) lines.push_back(fmt::format("{:<40} {}", name, what));
  return lines;
}

struct TasksJob::Parts {
  TaskOptions options;
  TaskSelection selection;                                                                  ///< on rank 0
  std::map<std::pair<std::string, std::string>, std::vector<nlohmann::ordered_json>> rows;  ///< by task and split

  AskOptions how() const {
    AskOptions how;
    how.limit = options.limit;
    how.num_fewshot = options.num_fewshot;
    how.seed = options.seed;
    return how;
  }

  /// The questions for one model. \throws FormatError as ask_task() and RequestEncoder
  Asked ask_all(const Run& run, const Logger& log) {
    auto how = this->how();
    how.system = run.system.value_or("");
    how.fewshot_as_multiturn = options.fewshot_as_multiturn;
    const auto& subject = run.subject;
    if (options.apply_chat_template) {
      how.write_turns = turn_writer(
          find_chat_template(run.conversations.chat_template, subject.tokenizer_name, subject.chat_template));
    }
    const auto positions = longest_row(subject.config);
    const RequestEncoder encoder(*subject.tokenizer, positions);
    Asked asked;
    RequestList list(encoder, asked.requests);
    const auto eos = subject.tokenizer->eos_id();
    const auto end_text = eos ? subject.tokenizer->decode_one(*eos) : std::string();
    for (const auto& task : selection.tasks) {
      asked.tasks.push_back({task, ask(task, how), {}});
      asked.places.push_back(list.add(task, asked.tasks.back().asked, end_text));
    }
    asked.cut = list.cut();
    if (asked.cut > 0) {
      log.warning(fmt::format("tasks: {} longer than the model's {} positions: the beginning is cut",
                              format_count_of(asked.cut, "prompt") + (asked.cut == 1 ? " is" : " are"), positions));
    }
    return asked;
  }

  TaskQuestions ask(const Task& task, const AskOptions& how) {
    const auto rows_of = [&](const std::string& split) -> const std::vector<nlohmann::ordered_json>& {
      const auto key = std::pair(task.name, split);
      const auto known = rows.find(key);
      if (known != rows.end()) return known->second;
      return rows.emplace(key, read_task_rows(task, split, find_dataset)).first->second;
    };
    return ask_task(task, rows_of, how);
  }
};

TasksJob::TasksJob(ProcessGroup& world, const TaskOptions& options, const std::vector<Gate>& gates)
    : parts_(std::make_unique<Parts>()) {
  parts_->options = options;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    TaskCatalog catalog;
    for (const auto& folder : options.include_paths) catalog.add_folder(folder);
    parts_->selection = catalog.select(options.names);
    require_metrics(gates, parts_->selection);
    const auto how = parts_->how();
    // So that what cannot be asked is told before a model is loaded.
    for (const auto& task : parts_->selection.tasks) parts_->ask(task, how);
  });
}

TasksJob::~TasksJob() = default;

std::pair<std::vector<std::string>, std::vector<Metric>> TasksJob::evaluate(ModelRuntime& runtime, const Run& run,
                                                                            const Logger& log, nlohmann::json& report) {
  const auto start = std::chrono::steady_clock::now();
  auto& world = runtime.world();
  Asked asked;
  run_agreed(world, [&] {
    if (world.rank() == 0) asked = parts_->ask_all(run, log);
  });
  share(world, asked.requests);
  const auto answers = answers_of(runtime, run, asked.requests, log);
  std::pair<std::vector<std::string>, std::vector<Metric>> told;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    asked.take(answers);
    const TaskResults results(std::move(asked.tasks), parts_->selection.groups, parts_->options.bootstrap_iters);
    const auto json = results.to_json();
    for (const auto& [key, value] : json.items()) report[key] = value;
    report["tasks_seconds"] = seconds_since(start);
    report["requests"] = asked.requests.scored.size() + asked.requests.prompts.size();
    report["requests_cut"] = asked.cut;
    told = {results.table(), metrics_of(results)};
    if (parts_->options.log_samples.empty()) return;
    std::string samples;
    results.write_samples([&](const std::string& line) { samples += line; });
    write_output(parts_->options.log_samples, samples);
  });
  share(world, told.second);
  return told;
}

}  // namespace fsdp
