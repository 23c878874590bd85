#pragma once
// Questions to a model: for each row of a task its prompt with shots, its choices and its right answer.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/benchmarks/tasks/task.hpp"

namespace fsdp {

/// A text to the model, which goes on after a context. Of a rolling task `continuation` is the page, of
/// generation `context` is the prompt.
struct TaskRequest {
  std::string context, continuation;
};

struct TaskQuestion {
  std::int64_t row = 0;           ///< of the asked split, from 0
  nlohmann::ordered_json doc;     ///< the row
  nlohmann::ordered_json target;  ///< as doc_to_target makes it, for logs
  std::vector<std::string> choices;
  std::vector<std::int64_t> gold;     ///< the right choices; of generation none
  std::vector<std::string> answers;   ///< the right texts of generation
  bool has_several = false;           ///< the target is a list: any of them counts
  std::vector<TaskRequest> requests;  ///< by choice; after them, for acc_mutual_info, those without context
  std::vector<std::size_t> shots;     ///< rows of the pool, in the order of the prompt
  std::string counted;                ///< the text whose words and bytes a rolling task divides by
};

/// A turn of a prompt. As text: `content`, then `delimiter`.
struct PromptTurn {
  std::string role, content, delimiter;
};

/// Writes turns as a chat template does, up to the answer. \param continues  the last turn is the answer's beginning
using TurnWriter = std::function<std::string(const std::vector<PromptTurn>& turns, bool continues)>;

struct AskOptions {
  std::optional<double> limit;              ///< most rows; below 1: their share
  std::optional<std::int64_t> num_fewshot;  ///< in place of the task's, unless that is 0
  std::int64_t seed = 1234;                 ///< of the shots
  TurnWriter write_turns;                   ///< empty: turns are joined as texts
  bool fewshot_as_multiturn = true;         ///< with write_turns: each shot is a turn of its own
  std::string system;                       ///< before the description
};

struct TaskQuestions {
  std::vector<TaskQuestion> questions;
  std::size_t num_rows = 0;      ///< of the asked split
  std::int64_t num_fewshot = 0;  ///< that were used
};

/// Reads a split, and keeps its rows.
using RowReader = std::function<const std::vector<nlohmann::ordered_json>&(const std::string& split)>;

/// \throws FormatError naming the task's file, and the row, of what cannot be asked: a column that is missing, an
/// answer
///   that is no choice, an empty choice without a delimiter, fewer rows than shots
TaskQuestions ask_task(const Task& task, const RowReader& rows_of, const AskOptions& options);

}  // namespace fsdp
