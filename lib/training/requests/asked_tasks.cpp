#include "lib/training/requests/asked_tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/benchmarks/tasks/request_ids.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/evaluate/generation_ends.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {
namespace {

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

}  // namespace

/// Makes ids of the requests of questions.
class AskedTasks::Encoding {
 public:
  Encoding(AskedTasks& owner, const TaskWriting& writing)
      : owner_(owner), encoder_(writing.tokenizer, writing.positions) {
    if (const auto eos = writing.tokenizer.eos_id()) end_text_ = writing.tokenizer.decode_one(*eos);
  }

  /// \throws FormatError naming the task's file and row
  void add(const Task& task, TaskQuestions asked) {
    TaskPlaces of_task{task, std::move(asked), {}};
    hash_ = fnv1a(fmt::format("{:x} {}", hash_, task.name));
    for (const auto& question : of_task.asked.questions) {
      auto& places = of_task.places.emplace_back();
      hash_ = fnv1a(fmt::format("{:x} {}", hash_, question.target.dump()));
      for (std::size_t i = 0; i < question.requests.size(); ++i) {
        const auto& request = question.requests[i];
        hash_ = fnv1a(fmt::format("{:x} {} {}", hash_, request.context, request.continuation));
        try {
          places.push_back(add(task, request));
        } catch (const FormatError& error) {
          const auto choice =
              question.requests.size() > 1 ? fmt::format(", choice {}", i % question.choices.size()) : "";
          throw FormatError(
              fmt::format("{}: row {} of {}{}: {}", task.file, question.row, task.asked_split(), choice, error.what()));
        }
      }
    }
    owner_.tasks_.push_back(std::move(of_task));
    owner_.identity_ = fmt::format("tasks {:016x}", hash_);
  }

 private:
  Place add(const Task& task, const TaskRequest& request) {
    auto& [scored, prompts] = owner_.requests_;
    const auto sees = [&](std::size_t ids) {
      owner_.longest_ = std::max(owner_.longest_, static_cast<std::int64_t>(ids));
    };
    if (task.output == TaskOutput::generate_until) {
      AskedPrompt prompt;
      bool was_cut = false;
      prompt.ids = encoder_.prompt(request.context, task.generation.max_gen_toks, was_cut);
      prompt.most_tokens = task.generation.max_gen_toks;
      prompt.stops = task.generation.until;
      if (!end_text_.empty()) prompt.stops.push_back(end_text_);
      owner_.cut_ += was_cut ? 1 : 0;
      sees(prompt.ids.size());
      prompts.push_back(std::move(prompt));
      return {prompts.size() - 1, 1};
    }
    std::vector<ScoredIds> ids;
    if (task.output == TaskOutput::loglikelihood_rolling) {
      ids = encoder_.windows(request.continuation);
    } else {
      ids.push_back(encoder_.pair(request.context, request.continuation));
      owner_.cut_ += ids.front().was_cut ? 1 : 0;
    }
    const Place place{scored.size(), ids.size()};
    for (auto& one : ids) {
      sees(one.context.size() + one.continuation.size() - 1);
      scored.push_back({std::move(one.context), std::move(one.continuation)});
    }
    return place;
  }

  AskedTasks& owner_;
  RequestEncoder encoder_;
  std::string end_text_;
  std::uint64_t hash_ = 0;
};

std::vector<std::int32_t> answer_ends(const Tokenizer& tokenizer,
                                      const std::vector<std::filesystem::path>& directories) {
  auto ends = generation_ends(directories);
  if (const auto eos = tokenizer.eos_id()) ends.push_back(*eos);
  return ends;
}

std::string AskedTasks::cut_words() const {
  if (cut_ == 0) return "";
  return fmt::format("tasks: {} longer than the model's {} positions: the beginning is cut",
                     format_count_of(cut_, "prompt") + (cut_ == 1 ? " is" : " are"), positions_);
}

AskedTasks::AskedTasks(ProcessGroup& world, TaskSet* set, const TaskWriting& writing)
    : tokenizer_(writing.tokenizer), positions_(writing.positions) {
  run_agreed(world, [&] {
    if (world.rank() == 0) encode(*set, writing);
  });
  const auto told = nlohmann::json::parse(world.broadcast_text(nlohmann::json{longest_, identity_}.dump(), 0));
  longest_ = told[0].get<std::int64_t>();
  identity_ = told[1].get<std::string>();
}

void AskedTasks::encode(TaskSet& set, const TaskWriting& writing) {
  AskOptions how;
  how.system = writing.system;
  how.fewshot_as_multiturn = writing.fewshot_as_multiturn;
  if (writing.chat != nullptr) how.write_turns = turn_writer(writing.chat);
  Encoding encoding(*this, writing);
  for (const auto& task : set.selection().tasks) encoding.add(task, set.ask(task, how));
  groups_ = set.selection().groups;
}

/// Rank 0's requests, on the other ranks; nothing on rank 0. Collective.
AskedTasks::Requests AskedTasks::shared(ProcessGroup& world) const {
  std::vector<std::int32_t> flat;
  auto stops = nlohmann::json::array();
  flat.push_back(static_cast<std::int32_t>(requests_.scored.size()));
  for (const auto& request : requests_.scored) {
    put(flat, request.context);
    put(flat, request.continuation);
  }
  for (const auto& prompt : requests_.prompts) {
    put(flat, prompt.ids);
    flat.push_back(static_cast<std::int32_t>(prompt.most_tokens));
    stops.push_back(prompt.stops);
  }
  const nlohmann::json sizes{{"ids", flat.size()}, {"stops", stops}};
  const auto told = nlohmann::json::parse(world.broadcast_text(sizes.dump(), 0));
  flat.resize(told["ids"].get<std::size_t>());
  world.broadcast(std::as_writable_bytes(std::span(flat)), 0);
  Requests requests;
  if (world.rank() == 0) return requests;
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
  return requests;
}

std::optional<ModelAnswers> AskedTasks::ask(ModelRuntime& runtime, const TaskRound& round) const {
  auto& world = runtime.world();
  const auto received = world.size() > 1 ? shared(world) : Requests();
  const auto& requests = world.rank() == 0 ? requests_ : received;
  const auto shown = [&](const char* what, std::size_t count) {
    return [&round, what, count](double done) {
      if (round.progress) round.progress(what, count, done);
    };
  };
  ModelAnswers answers;
  if (!requests.scored.empty()) {
    auto scores =
        score_requests(runtime, requests.scored,
                       {round.batch_size, round.alike, shown("requests", requests.scored.size()), round.stopped});
    if (!scores) return std::nullopt;
    answers.scores = std::move(*scores);
  }
  auto texts = answer_prompts(runtime, tokenizer_, requests.prompts,
                              {round.ends, round.batch_size, shown("prompts", requests.prompts.size()), round.stopped});
  if (!texts) return std::nullopt;
  answers.texts = std::move(*texts);
  return answers;
}

TaskAnswer AskedTasks::answer_at(const Task& task, const Place& place, const ModelAnswers& answers) {
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

TaskResults AskedTasks::results(const ModelAnswers& answers, std::int64_t bootstraps) const {
  std::vector<AnsweredTask> answered;
  for (const auto& [task, asked, places] : tasks_) {
    auto& of_task = answered.emplace_back(AnsweredTask{&task, &asked, {}});
    for (const auto& of_question : places) {
      auto& to = of_task.answers.emplace_back();
      for (const auto& place : of_question) to.push_back(answer_at(task, place, answers));
    }
  }
  return {std::move(answered), groups_, bootstraps};
}

}  // namespace fsdp
