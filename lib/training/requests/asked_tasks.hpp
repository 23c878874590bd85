#pragma once
// Benchmarks put to a model: questions as requests of ids, the model's answers, and what these are worth.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/benchmarks/results/task_results.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/templates/chat/chat_template.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"
#include "lib/training/requests/answer_prompts.hpp"
#include "lib/training/requests/score_requests.hpp"
#include "lib/training/requests/task_set.hpp"

namespace fsdp {

/// How questions are written for a model.
struct TaskWriting {
  const Tokenizer& tokenizer;
  std::int64_t positions = 0;                ///< the model's longest input
  std::shared_ptr<const ChatTemplate> chat;  ///< null: as texts
  bool fewshot_as_multiturn = true;          ///< with `chat`: each shot is a turn of its own
  std::string system;                        ///< before a task's description
};

/// The ids that end an answer: generation_ends() of the directories, and the tokenizer's end mark.
std::vector<std::int32_t> answer_ends(const Tokenizer& tokenizer,
                                      const std::vector<std::filesystem::path>& directories);

struct TaskRound {
  std::vector<std::int32_t> ends;  ///< answer_ends()
  /// On one rank: a forward pass has at most as many tokens as this number of the longest requests; and texts at once.
  std::int64_t batch_size = 8;
  bool alike = false;  ///< as ScoreRequestsOptions::alike
  /// Called on every rank. \param what  "requests" or "prompts" \param count  of these \param done  share
  std::function<void(const char* what, std::size_t count, double done)> progress = {};
  std::function<bool()> stopped = {};  ///< as for score_requests(), and asked before each token of texts
};

/// The model's answers to the requests, on every rank.
struct ModelAnswers {
  std::vector<RequestScore> scores;
  std::vector<std::string> texts;
};

/// The questions of all tasks, on rank 0; the other ranks get what they compute with when the model is asked.
class AskedTasks {
 public:
  /// \param set      on rank 0; null on the others
  /// \param writing  its tokenizer must outlive this object. Collective
  /// \throws on every rank what TaskSet::ask() and RequestEncoder throw, naming the task's file and row
  AskedTasks(ProcessGroup& world, TaskSet* set, const TaskWriting& writing);

  /// On rank 0; 0 on the others.
  std::size_t num_requests() const { return requests_.scored.size() + requests_.prompts.size(); }
  /// Contexts and prompts whose beginning the model does not see; likewise.
  std::int64_t cut() const { return cut_; }
  /// A sentence about them; empty where there are none.
  std::string cut_words() const;
  /// Ids that the longest request makes the model see, on every rank.
  std::int64_t longest() const { return longest_; }
  /// A hash of questions and right answers: figures of rounds with equal ones can be compared. On every rank.
  const std::string& identity() const { return identity_; }

  /// Collective. \return nothing when stopped
  std::optional<ModelAnswers> ask(ModelRuntime& runtime, const TaskRound& round) const;
  /// On rank 0: the results of one round, which this object must outlive. \param bootstraps  as for TaskResults
  TaskResults results(const ModelAnswers& answers, std::int64_t bootstraps) const;

 private:
  struct Requests {
    std::vector<ScoreRequest> scored;
    std::vector<AskedPrompt> prompts;
  };
  /// Where the answer to a request comes from: scores [first, first + count), or a prompt.
  struct Place {
    std::size_t first = 0, count = 0;
  };
  struct TaskPlaces {
    Task task;
    TaskQuestions asked;
    std::vector<std::vector<Place>> places;  ///< by question and request
  };
  class Encoding;

  void encode(TaskSet& set, const TaskWriting& writing);
  Requests shared(ProcessGroup& world) const;
  static TaskAnswer answer_at(const Task& task, const Place& place, const ModelAnswers& answers);

  const Tokenizer& tokenizer_;
  std::int64_t positions_;
  std::vector<TaskPlaces> tasks_;
  std::vector<TaskGroup> groups_;
  Requests requests_;
  std::int64_t cut_ = 0, longest_ = 0;
  std::string identity_;
};

}  // namespace fsdp
