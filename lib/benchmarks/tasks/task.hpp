#pragma once
// A benchmark as its file says it: where the rows are, how a row becomes requests, how answers are judged.
//
// Source: the task files of lm-eval 0.4.13 (lm_eval/config/task.py, docs/task_guide.md), whose keys these are.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

enum class TaskOutput : std::uint8_t {
  multiple_choice,        ///< log-likelihoods of all choices after a context
  loglikelihood,          ///< that of the target after a context
  loglikelihood_rolling,  ///< that of a whole text, in windows
  generate_until          ///< text that the model writes
};

/// How texts are made of a row: a column's name, a template, or the value itself. Null: none.
struct TaskTexts {
  nlohmann::ordered_json text;    ///< doc_to_text
  nlohmann::ordered_json choice;  ///< doc_to_choice
  nlohmann::ordered_json target;  ///< doc_to_target
  nlohmann::ordered_json gen_prefix;
  std::string target_delimiter = " ";
  std::string fewshot_delimiter = "\n\n";
};

struct TaskMetric {
  std::string name;         ///< "acc"
  std::string aggregation;  ///< "mean"
  bool higher_is_better = true;
  // For exact_match:
  std::vector<std::string> regexes_to_ignore;
  bool ignore_case = false, ignore_punctuation = false, ignore_numbers = false;
};

/// A step from what the model wrote to what is compared with the target.
struct FilterStep {
  std::string function;                       ///< take_first, regex, remove_whitespace, lowercase, uppercase, map
  std::string pattern;                        ///< of regex
  std::int64_t group_select = 0;              ///< which match; negative: from the end
  std::string fallback;                       ///< where nothing matches
  nlohmann::ordered_json mapping, otherwise;  ///< of map
};

struct TaskFilter {
  std::string name;
  std::vector<FilterStep> steps;
};

struct TaskGeneration {
  std::vector<std::string> until;
  std::int64_t max_gen_toks = 256;
  nlohmann::ordered_json as_given;  ///< generation_kwargs, for logs
};

/// Where rows come from.
struct TaskData {
  std::string path;              ///< "json", "parquet", or a folder or ORG/NAME of the hub's cache
  std::string name;              ///< configuration; "": the only one
  nlohmann::ordered_json files;  ///< data_files: {SPLIT: FILE or [FILE...]}; null: found by convention
  std::filesystem::path folder;  ///< relative files count from here
};

struct Task {
  std::string name, alias;
  std::string file;  ///< names it in messages
  TaskData data;
  std::string training_split, validation_split, test_split, fewshot_split;  ///< "": none
  /// Columns that templates make of a row before all else, in order: {NAME: TEMPLATE}.
  nlohmann::ordered_json columns;
  std::string description;
  TaskTexts texts, shot_texts;
  std::optional<std::int64_t> num_fewshot;
  bool first_shots = false;                     ///< sampler first_n instead of random ones
  std::vector<nlohmann::ordered_json> samples;  ///< shots that the file itself has, where there is no fewshot_split
  TaskOutput output = TaskOutput::generate_until;
  TaskGeneration generation;
  std::vector<TaskFilter> filters;
  std::vector<TaskMetric> metrics;
  bool gold_probability = false;      ///< acc is the share of probability that the right choices have
  nlohmann::ordered_json count_text;  ///< whose words and bytes a rolling task divides by; null: the target
  nlohmann::ordered_json version;     ///< metadata.version
  nlohmann::ordered_json config;      ///< all keys as they were read, for results

  const std::string& asked_split() const { return test_split.empty() ? validation_split : test_split; }
};

/// A figure of a group, from its tasks'.
struct GroupMetric {
  std::string metric;
  bool weight_by_size = true;
  std::optional<std::vector<std::string>> filters;  ///< nothing: all that its tasks have
};

struct TaskGroup {
  std::string name, alias;
  std::vector<std::string> members;  ///< tasks and groups
  std::vector<GroupMetric> metrics;
  nlohmann::ordered_json version, config;
};

/// Makes a task of its file's keys. \param file  names it in messages \param folder  relative files count from here
/// \throws FormatError naming file and key of what is missing, wrong, unknown, or needs Python
Task task_of(const nlohmann::ordered_json& keys, const std::string& file, const std::filesystem::path& folder);
/// \param members  that task_catalog.hpp has found
TaskGroup group_of(const nlohmann::ordered_json& keys, const std::string& file, std::vector<std::string> members);

}  // namespace fsdp
