#include "lib/benchmarks/tasks/task_questions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "lib/base/types/error.hpp"
#include "lib/benchmarks/tasks/python_literal.hpp"
#include "lib/benchmarks/tasks/python_random.hpp"
#include "lib/benchmarks/tasks/text_source.hpp"
#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {
namespace {

using nlohmann::ordered_json;

bool begins_with_space(std::string_view text) { return jinja::strip(text, true, false).size() != text.size(); }
bool ends_with_space(std::string_view text) { return jinja::strip(text, false, true).size() != text.size(); }

/// Joins two texts with a delimiter, which white space of theirs makes needless.
std::string delimited(const std::string& first, const std::string& second, const std::string& delimiter) {
  if (first.empty() || second.empty()) return first + second;
  return first + (ends_with_space(first) || begins_with_space(second) ? "" : delimiter) + second;
}

bool is_digits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// TaskTexts, ready for rows.
class Texts {
 public:
  Texts(const Task& task, const TaskTexts& texts, const std::set<std::string>& columns)
      : text_(texts.text, columns, task.file, "doc_to_text"),
        choice_(texts.choice, columns, task.file, "doc_to_choice"),
        target_(texts.target, columns, task.file, "doc_to_target"),
        prefix_(texts.gen_prefix, columns, task.file, "gen_prefix"),
        delimiter(texts.target_delimiter),
        after_shot(texts.fewshot_delimiter) {
    for (const auto* source : {&text_, &choice_, &target_}) source->require_column_or_template(columns);
  }

  /// A text, or the number of a choice.
  ordered_json text(const ordered_json& row, const std::string& name) const {
    auto made = text_.value(row, name);
    return text_.is_template() && choice_ ? as_number(made) : made;
  }

  std::vector<std::string> choices(const ordered_json& row, const std::string& name) const {
    if (!choice_) return {};
    auto made = choice_.value(row, name);
    if (choice_.is_template()) {
      const auto text = made.get<std::string>();
      const auto list = python_literal(text);
      if (!list || !list->is_array()) choice_.fail(name, fmt::format("makes '{}', which is no list of Python", text));
      made = *list;
    }
    if (!made.is_array() || made.empty()) choice_.fail(name, "is no list of choices");
    std::vector<std::string> all;
    for (const auto& one : made) {
      if (!one.is_string())
        choice_.fail(name, fmt::format("choice {} is {}, and a text is expected", all.size(), one.dump()));
      all.push_back(one.get<std::string>());
    }
    return all;
  }

  ordered_json target(const ordered_json& row, const std::string& name) const {
    auto made = target_.value(row, name);
    if (!target_.is_template()) return made;
    const auto text = made.get<std::string>();
    if (choice_ && is_digits(text)) return as_number(made);
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') return made;
    return python_literal(text).value_or(made);
  }

  std::string prefix(const ordered_json& row, const std::string& name) const {
    return prefix_ ? prefix_.text(row, name) : std::string();
  }

  [[noreturn]] void fail_text(const std::string& name, const std::string& what) const { text_.fail(name, what); }
  [[noreturn]] void fail_choice(const std::string& name, const std::string& what) const { choice_.fail(name, what); }
  [[noreturn]] void fail_target(const std::string& name, const std::string& what) const { target_.fail(name, what); }

 private:
  static ordered_json as_number(const ordered_json& made) {
    const auto text = made.get<std::string>();
    return is_digits(text) ? python_literal(text).value_or(made) : made;
  }

  TextSource text_, choice_, target_, prefix_;

 public:
  std::string delimiter, after_shot;
};

std::set<std::string> columns_of(const std::vector<ordered_json>& rows) {
  std::set<std::string> names;
  if (!rows.empty()) {
    for (const auto& [name, value] : rows.front().items()) names.insert(name);
  }
  return names;
}

/// Draws the shots of one document after the other.
class Shots {
 public:
  /// \param leaves_out  the pool has the documents that are asked
  Shots(const Task& task, std::vector<ordered_json> pool, std::string pool_name, std::size_t count, std::int64_t seed,
        bool leaves_out)
      : task_(task),
        pool_(std::move(pool)),
        pool_name_(std::move(pool_name)),
        count_(count),
        random_(seed),
        leaves_out_(leaves_out) {}

  const ordered_json& row(std::size_t at) const { return pool_[at]; }
  const std::string& pool_name() const { return pool_name_; }

  std::vector<std::size_t> draw(const ordered_json& doc) {
    if (count_ == 0) return {};
    if (task_.first_shots) {
      auto first = all_but(leaves_out_ ? &doc : nullptr);
      if (first.size() < count_) too_few(first.size());
      first.resize(count_);
      return first;
    }
    const auto wanted = count_ + (leaves_out_ ? 1 : 0);
    if (wanted > pool_.size()) too_few(pool_.size() - (leaves_out_ ? 1 : 0));
    auto drawn = random_.sample(pool_.size(), wanted);
    if (!leaves_out_) return drawn;
    std::erase_if(drawn, [&](std::size_t at) { return pool_[at] == doc; });
    if (drawn.size() < count_) {  // copies of the document were among them
      const auto others = all_but(&doc);
      if (others.size() < count_) too_few(others.size());
      drawn = random_.sample(others.size(), count_);
      for (auto& at : drawn) at = others[at];
    }
    drawn.resize(count_);
    return drawn;
  }

 private:
  std::vector<std::size_t> all_but(const ordered_json* doc) const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      if (doc == nullptr || pool_[i] != *doc) all.push_back(i);
    }
    return all;
  }
  [[noreturn]] void too_few(std::size_t there) const {
    throw FormatError(
        fmt::format("{}: {} shots are asked for, and {} has {} for a question", task_.file, count_, pool_name_, there));
  }

  const Task& task_;
  std::vector<ordered_json> pool_;
  std::string pool_name_;
  std::size_t count_;
  PythonRandom random_;
  bool leaves_out_;
};

class Asking {
 public:
  Asking(const Task& task, const AskOptions& options, const std::set<std::string>& columns, Shots& shots)
      : task_(task),
        options_(options),
        shots_(shots),
        of_doc_(task, task.texts, columns),
        of_shot_(task, task.shot_texts, columns),
        description_(task.description.empty() ? ordered_json() : ordered_json(task.description), columns, task.file,
                     "description"),
        counted_(task.count_text, columns, task.file, "count_text"),
        mutual_(std::any_of(task.metrics.begin(), task.metrics.end(),
                            [](const auto& metric) { return metric.name == "acc_mutual_info"; })) {}

  TaskQuestion question(const ordered_json& doc, std::size_t row) {
    const auto name = fmt::format("row {} of {}", row, task_.asked_split());
    TaskQuestion question;
    question.row = static_cast<std::int64_t>(row);
    question.doc = doc;
    question.shots = shots_.draw(doc);
    question.target = of_doc_.target(doc, name);
    question.choices = of_doc_.choices(doc, name);
    const auto text = of_doc_.text(doc, name);
    const bool several_inputs = text.is_number_integer() && !question.choices.empty();
    if (!text.is_string() && !several_inputs)
      of_doc_.fail_text(name, fmt::format("is {}, and a text is expected", text.dump()));
    const auto before = turns_before(doc, question.shots, name);
    const auto prefix = of_doc_.prefix(doc, name);
    std::vector<std::string> contexts;
    if (several_inputs) {
      for (const auto& choice : question.choices) contexts.push_back(written(before, choice, prefix));
    } else {
      contexts.push_back(written(before, text.get<std::string>(), prefix));
    }
    add_gold(question, text, several_inputs, name);
    add_requests(question, contexts, several_inputs, name);
    return question;
  }

 private:
  std::vector<PromptTurn> turns_before(const ordered_json& doc, const std::vector<std::size_t>& shots,
                                       const std::string& name) const {
    std::vector<PromptTurn> turns;
    const auto description = description_ ? description_.text(doc, name) : std::string();
    const auto system = delimited(options_.system, description, task_.texts.fewshot_delimiter);
    if (!system.empty()) turns.push_back({"system", system, ""});
    for (const auto at : shots) add_shot(turns, at);
    return turns;
  }

  void add_shot(std::vector<PromptTurn>& turns, std::size_t at) const {
    const auto& row = shots_.row(at);
    const auto name = fmt::format("row {} of {} (a shot)", at, shots_.pool_name());
    const auto choices = of_shot_.choices(row, name);
    auto text = of_shot_.text(row, name);
    const auto choice = [&](const ordered_json& number) {
      const auto index = number.get<std::int64_t>();
      if (index < 0 || index >= std::ssize(choices))
        of_shot_.fail_target(name, fmt::format("{} is none of the {} choices", index, choices.size()));
      return choices[static_cast<std::size_t>(index)];
    };
    const bool several_inputs = text.is_number_integer() && !choices.empty();
    if (several_inputs) text = choice(text);
    if (!text.is_string()) of_shot_.fail_text(name, fmt::format("is {}, and a text is expected", text.dump()));
    auto answer = of_shot_.target(row, name);
    if (answer.is_array()) answer = answer.empty() ? ordered_json("") : answer.front();
    if (answer.is_number_integer() && !choices.empty() && !several_inputs) answer = choice(answer);
    if (!answer.is_string()) of_shot_.fail_target(name, fmt::format("is {}, and a text is expected", answer.dump()));
    const auto prefix = of_shot_.prefix(row, name);
    const auto target = answer.get<std::string>();
    if (target.empty() && prefix.empty()) {  // both delimiters go with the answer
      turns.push_back({"user", text, ""});
      return;
    }
    turns.push_back({"user", text, delimiter_before(text, prefix, of_shot_, !target.empty())});
    turns.push_back({"assistant", delimited(prefix, target, " "), target.empty() ? "" : of_shot_.after_shot});
  }

  static std::string delimiter_before(const std::string& text, const std::string& prefix, const Texts& texts,
                                      bool has_answer) {
    if (prefix.empty()) return has_answer ? texts.delimiter : "";
    return !text.empty() && !ends_with_space(text) && !begins_with_space(prefix) ? texts.delimiter : "";
  }

  /// The prompt up to the answer.
  std::string written(std::vector<PromptTurn> turns, const std::string& text, const std::string& prefix) const {
    turns.push_back({"user", text, delimiter_before(text, prefix, of_doc_, false)});
    if (!prefix.empty()) turns.push_back({"assistant", prefix, ""});
    if (options_.write_turns) {
      return options_.write_turns(options_.fewshot_as_multiturn ? turns : joined(turns), !prefix.empty());
    }
    std::string all;
    for (const auto& turn : turns) all += turn.content + turn.delimiter;
    return all;
  }

  /// All shots in one turn of the user.
  static std::vector<PromptTurn> joined(const std::vector<PromptTurn>& turns) {
    std::vector<PromptTurn> made;
    auto first = turns.begin(), last = turns.end();
    if (first->role == "system") made.push_back(*first++);
    const bool continues = (last - 1)->role == "assistant";
    if (continues) --last;
    PromptTurn user{"user", "", ""};
    for (auto turn = first; turn != last; ++turn)
      user.content += turn->content + (turn + 1 == last ? "" : turn->delimiter);
    made.push_back(std::move(user));
    if (continues) made.push_back(*last);
    return made;
  }

  void add_gold(TaskQuestion& question, const ordered_json& text, bool several_inputs, const std::string& name) const {
    const auto& gold = several_inputs ? text : question.target;
    question.has_several = gold.is_array();
    if (task_.output == TaskOutput::generate_until) return add_answers(question, name);
    if (task_.output != TaskOutput::multiple_choice) return;
    const auto& choices = question.choices;
    for (const auto& one : gold.is_array() ? gold : ordered_json::array({gold})) {
      std::int64_t index = -1;
      if (one.is_number_integer()) index = one.get<std::int64_t>();
      if (one.is_string()) index = std::find(choices.begin(), choices.end(), one.get<std::string>()) - choices.begin();
      if (index < 0 || index >= std::ssize(choices))
        of_doc_.fail_target(name, fmt::format("the answer {} is none of the {} choices", one.dump(), choices.size()));
      question.gold.push_back(index);
    }
    if (question.gold.empty()) of_doc_.fail_target(name, "has no right answer");
  }

  void add_answers(TaskQuestion& question, const std::string& name) const {
    const auto& target = question.target;
    for (const auto& one : target.is_array() ? target : ordered_json::array({target})) {
      if (one.is_number_integer() && !question.choices.empty()) {
        const auto index = one.get<std::int64_t>();
        if (index < 0 || index >= std::ssize(question.choices))
          of_doc_.fail_target(name,
                              fmt::format("the answer {} is none of the {} choices", index, question.choices.size()));
        question.answers.push_back(question.choices[static_cast<std::size_t>(index)]);
      } else {
        question.answers.push_back(one.is_string() ? one.get<std::string>() : one.dump());
      }
    }
    if (question.answers.empty()) of_doc_.fail_target(name, "has no right answer");
  }

  void add_requests(TaskQuestion& question, const std::vector<std::string>& contexts, bool several_inputs,
                    const std::string& name) const {
    const auto target = [&] {
      if (!question.target.is_string())
        of_doc_.fail_target(name, fmt::format("is {}, and a text is expected", question.target.dump()));
      return question.target.get<std::string>();
    };
    switch (task_.output) {
      case TaskOutput::generate_until:
        question.requests.push_back({contexts.front(), ""});
        return;
      case TaskOutput::loglikelihood:
        question.requests.push_back({contexts.front(), target()});
        return;
      case TaskOutput::loglikelihood_rolling:
        question.requests.push_back({"", target()});
        question.counted = counted_ ? counted_.text(question.doc, name) : target();
        return;
      case TaskOutput::multiple_choice:
        break;
    }
    // With a chat template the answer begins a turn, and needs no delimiter but after a beginning of it.
    auto delimiter = task_.texts.target_delimiter;
    if (options_.write_turns) {
      const auto prefix = of_doc_.prefix(question.doc, name);
      if (prefix.empty() || ends_with_space(prefix)) delimiter.clear();
    }
    if (several_inputs) {
      for (const auto& context : contexts) question.requests.push_back({context, delimiter + target()});
    } else {
      for (const auto& choice : question.choices) question.requests.push_back({contexts.front(), delimiter + choice});
    }
    if (mutual_) {
      for (const auto& choice : question.choices) question.requests.push_back({"", delimiter + choice});
    }
    for (std::size_t i = 0; i < question.requests.size(); ++i) {
      if (question.requests[i].continuation.empty())
        of_doc_.fail_choice(name,
                            fmt::format("choice {} is empty, and no delimiter is in front of it: nothing can be scored",
                                        i % question.choices.size()));
    }
  }

  const Task& task_;
  const AskOptions& options_;
  Shots& shots_;
  Texts of_doc_, of_shot_;
  TextSource description_, counted_;
  bool mutual_;
};

std::size_t rows_asked(std::size_t rows, const std::optional<double>& limit) {
  if (!limit) return rows;
  const auto most = *limit < 1 ? std::ceil(static_cast<double>(rows) * *limit) : std::floor(*limit);
  return std::min(rows, static_cast<std::size_t>(most));
}

/// The number of shots: the task's own 0 stays, as lm-eval has it.
std::int64_t num_shots(const Task& task, const AskOptions& options) {
  const auto own = task.num_fewshot.value_or(0);
  if (!options.num_fewshot || (task.num_fewshot && own == 0)) return own;
  return *options.num_fewshot;
}

}  // namespace

TaskQuestions ask_task(const Task& task, const RowReader& rows_of, const AskOptions& options) {
  TaskQuestions asked;
  const auto& rows = rows_of(task.asked_split());
  asked.num_rows = rows.size();
  if (rows.empty()) throw FormatError(fmt::format("{}: the split '{}' has no rows", task.file, task.asked_split()));
  asked.num_fewshot = num_shots(task, options);
  // A page has no prompt, and so no shots.
  const auto count_of_shots = task.output == TaskOutput::loglikelihood_rolling ? 0 : asked.num_fewshot;
  std::vector<ordered_json> pool;
  std::string pool_name = task.fewshot_split;
  if (count_of_shots > 0) {
    if (pool_name.empty() && !task.samples.empty()) {
      pool = task.samples;
      pool_name = "fewshot_config";
    } else {
      for (const auto* split : {&task.training_split, &task.validation_split, &task.test_split}) {
        if (pool_name.empty()) pool_name = *split;
      }
      pool = pool_name == task.asked_split() ? rows : rows_of(pool_name);
    }
  }
  Shots shots(task, std::move(pool), pool_name, static_cast<std::size_t>(count_of_shots), options.seed,
              task.fewshot_split == task.test_split);
  Asking asking(task, options, columns_of(rows), shots);
  const auto count = rows_asked(rows.size(), options.limit);
  for (std::size_t i = 0; i < count; ++i) asked.questions.push_back(asking.question(rows[i], i));
  return asked;
}

}  // namespace fsdp
