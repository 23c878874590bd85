#include "lib/benchmarks/tasks/task.hpp"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <map>
#include <set>

#include "lib/base/text/nearest_name.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/named_values.hpp"

namespace fsdp {
namespace {

using nlohmann::ordered_json;

constexpr std::array<NamedValue<TaskOutput>, 4> kOutputs{{{"multiple_choice", TaskOutput::multiple_choice},
                                                          {"loglikelihood", TaskOutput::loglikelihood},
                                                          {"loglikelihood_rolling", TaskOutput::loglikelihood_rolling},
                                                          {"generate_until", TaskOutput::generate_until}}};

/// The facts of a metric where the file does not say them, as lm-eval has them.
struct MetricFacts {
  std::string_view aggregation;
  bool higher_is_better;
  std::vector<TaskOutput> outputs;
};

const std::map<std::string, MetricFacts, std::less<>>& known_metrics() {
  using enum TaskOutput;
  static const std::map<std::string, MetricFacts, std::less<>> kMetrics{
      {"acc", {"mean", true, {multiple_choice, loglikelihood}}},
      {"acc_norm", {"mean", true, {multiple_choice}}},
      {"acc_bytes", {"mean", true, {multiple_choice}}},
      {"acc_mutual_info", {"mean", true, {multiple_choice}}},
      {"exact_match", {"mean", true, {multiple_choice, generate_until}}},
      {"brier_score", {"brier_score", false, {multiple_choice}}},
      {"f1", {"f1", true, {multiple_choice}}},
      {"mcc", {"matthews_corrcoef", true, {multiple_choice}}},
      {"perplexity", {"perplexity", false, {loglikelihood}}},
      {"word_perplexity", {"weighted_perplexity", false, {loglikelihood_rolling}}},
      {"byte_perplexity", {"weighted_perplexity", false, {loglikelihood_rolling}}},
      {"bits_per_byte", {"bits_per_byte", false, {loglikelihood_rolling}}},
  };
  return kMetrics;
}

/// Reads keys of an object, and refuses those that were not asked for.
class Keys {
 public:
  Keys(const ordered_json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw FormatError(where_ + ": is no mapping of keys to values");
    for (const auto& [key, value] : object.items()) {
      if (!needs_python(value)) continue;
      fail(key, fmt::format("needs Python (!function {}), which is not run here: write it as a template, or leave the "
                            "task out",
                            value.value("!function", std::string())));
    }
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw FormatError(fmt::format("{}: key '{}': {}", where_, key, what));
  }
  const std::string& where() const { return where_; }

  const ordered_json& get(const std::string& key) {
    static const ordered_json kNull;
    asked_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? kNull : *found;
  }
  bool has(const std::string& key) { return !get(key).is_null(); }

  std::string text(const std::string& key, const std::string& otherwise = "") {
    const auto& value = get(key);
    if (value.is_null()) return otherwise;
    if (!value.is_string()) fail(key, "is no text");
    return value.get<std::string>();
  }
  bool flag(const std::string& key, bool otherwise) {
    const auto& value = get(key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) fail(key, "is neither true nor false");
    return value.get<bool>();
  }
  std::optional<std::int64_t> number(const std::string& key) {
    const auto& value = get(key);
    if (value.is_null()) return {};
    if (!value.is_number_integer()) fail(key, "is no whole number");
    return value.get<std::int64_t>();
  }
  /// A list; of one value where the file has no list.
  std::vector<ordered_json> list(const std::string& key) {
    const auto& value = get(key);
    if (value.is_null()) return {};
    if (!value.is_array()) return {value};
    return {value.begin(), value.end()};
  }
  std::vector<std::string> texts(const std::string& key) {
    std::vector<std::string> all;
    for (const auto& value : list(key)) {
      if (!value.is_string()) fail(key, "is no list of texts");
      all.push_back(value.get<std::string>());
    }
    return all;
  }
  /// Keys that change nothing here. \param allowed  the values that say that nothing is to be done
  void only(const std::string& key, const ordered_json& allowed, const std::string& problem) {
    const auto& value = get(key);
    if (!value.is_null() && value != allowed) fail(key, problem);
  }

  /// \throws FormatError naming the first key that nothing asked for
  void all_known() const {
    for (const auto& [key, value] : object_.items()) {
      if (asked_.contains(key)) continue;
      NearestName nearest(key);
      for (const auto& name : asked_) nearest.offer(name, name);
      fail(key, "is not known" + (nearest.name().empty() ? std::string() : "; did you mean '" + nearest.name() + "'?"));
    }
  }

 private:
  static bool needs_python(const ordered_json& value) { return value.is_object() && value.contains("!function"); }

  const ordered_json& object_;
  std::string where_;
  std::set<std::string> asked_;
};

/// A text source: a text, or what `kinds` allows besides.
ordered_json source(Keys& keys, const std::string& key, bool number, bool list) {
  const auto& value = keys.get(key);
  const bool known = value.is_null() || value.is_string() || (number && value.is_number_integer()) ||
                     (list && (value.is_array() || value.is_object()));
  if (!known) keys.fail(key, "is neither a column, nor a template, nor a value that can be used here");
  if (value.is_object()) {  // doc_to_choice as a mapping: its values
    auto values = ordered_json::array();
    for (const auto& [name, one] : value.items()) values.push_back(one);
    return values;
  }
  return value;
}

TaskMetric metric_of(const ordered_json& value, TaskOutput output, bool own_results, const std::string& where) {
  Keys keys(value, where);
  TaskMetric metric;
  metric.name = keys.text("metric");
  const auto found = known_metrics().find(metric.name);
  if (found == known_metrics().end()) {
    std::string names;
    for (const auto& [name, facts] : known_metrics()) names += (names.empty() ? "" : ", ") + name;
    keys.fail("metric", fmt::format("'{}' is not known here; there are {}", metric.name, names));
  }
  const auto& facts = found->second;
  if (std::find(facts.outputs.begin(), facts.outputs.end(), output) == facts.outputs.end())
    keys.fail("metric", fmt::format("'{}' is no metric of output_type {}", metric.name, name_of(kOutputs, output)));
  metric.aggregation = keys.text("aggregation", std::string(facts.aggregation));
  if (metric.aggregation != facts.aggregation && !(own_results && metric.aggregation == "mean"))
    keys.fail("aggregation",
              fmt::format("'{}' does not go with {}; expected {}", metric.aggregation, metric.name, facts.aggregation));
  metric.higher_is_better = keys.flag("higher_is_better", facts.higher_is_better);
  if (metric.name == "exact_match") {
    metric.regexes_to_ignore = keys.texts("regexes_to_ignore");
    metric.ignore_case = keys.flag("ignore_case", false);
    metric.ignore_punctuation = keys.flag("ignore_punctuation", false);
    metric.ignore_numbers = keys.flag("ignore_numbers", false);
  }
  keys.only("hf_evaluate", false, "metrics of the package evaluate need Python");
  keys.all_known();
  return metric;
}

FilterStep step_of(const ordered_json& value, const std::string& where) {
  Keys keys(value, where);
  FilterStep step;
  step.function = keys.text("function");
  if (step.function == "regex") {
    step.pattern = keys.text("regex_pattern", "#### (\\-?[0-9\\.\\,]+)");
    step.group_select = keys.number("group_select").value_or(0);
    step.fallback = keys.text("fallback", "[invalid]");
  } else if (step.function == "map") {
    step.mapping = keys.get("mapping_dict");
    step.otherwise = keys.get("default_value");
    if (!step.mapping.is_object()) keys.fail("mapping_dict", "is no mapping");
  } else if (step.function != "take_first" && step.function != "remove_whitespace" && step.function != "lowercase" &&
             step.function != "uppercase") {
    keys.fail("function", fmt::format("'{}' is not known here; there are regex, take_first, remove_whitespace, "
                                      "lowercase, uppercase and map",
                                      step.function));
  }
  keys.all_known();
  return step;
}

std::vector<TaskFilter> filters_of(Keys& keys) {
  std::vector<TaskFilter> filters;
  for (const auto& value : keys.list("filter_list")) {
    const auto where = keys.where() + ": filter_list";
    Keys of_filter(value, where);
    TaskFilter filter{of_filter.text("name"), {}};
    for (const auto& step : of_filter.list("filter")) filter.steps.push_back(step_of(step, where));
    of_filter.all_known();
    if (filter.name.empty() || filter.steps.empty()) keys.fail("filter_list", "a filter has no name, or does nothing");
    filters.push_back(std::move(filter));
  }
  if (filters.empty()) filters.push_back({"none", {{"take_first", "", 0, "", {}, {}}}});
  return filters;
}

TaskGeneration generation_of(Keys& keys, const std::string& delimiter) {
  TaskGeneration generation;
  const auto& value = keys.get("generation_kwargs");
  if (value.is_null()) {
    generation.until = {delimiter};
    generation.as_given = {{"temperature", 0.0}, {"do_sample", false}, {"max_gen_toks", 256}, {"until", {delimiter}}};
    return generation;
  }
  Keys given(value, keys.where() + ": generation_kwargs");
  generation.until = given.has("until") ? given.texts("until") : std::vector{delimiter};
  for (const auto& stop : generation.until) {
    if (stop.empty()) given.fail("until", "has an empty text, which would end every answer at once");
  }
  for (const auto* name : {"max_gen_toks", "max_new_tokens", "max_tokens"}) {
    if (const auto most = given.number(name)) generation.max_gen_toks = *most;
  }
  if (generation.max_gen_toks < 1) given.fail("max_gen_toks", "is less than 1");
  given.only("do_sample", false, "answers are the most probable ones: false is expected");
  const auto& temperature = given.get("temperature");
  if (!temperature.is_null() && !(temperature.is_number() && temperature.get<double>() == 0))
    given.fail("temperature", "answers are the most probable ones: 0 is expected");
  given.all_known();
  generation.as_given = value;
  if (!temperature.is_null()) generation.as_given["temperature"] = 0.0;
  if (!value.contains("until")) generation.as_given["until"] = {delimiter};
  return generation;
}

TaskData data_of(Keys& keys, const std::filesystem::path& folder) {
  TaskData data;
  data.folder = folder;
  data.path = keys.text("dataset_path");
  if (data.path.empty()) keys.fail("dataset_path", "is missing: json, parquet, a folder, or ORG/NAME");
  const auto& name = keys.get("dataset_name");
  if (!name.is_null() && !name.is_string()) keys.fail("dataset_name", "is no text");
  data.name = name.is_null() ? "" : name.get<std::string>();
  if (keys.has("dataset_kwargs")) {
    Keys more(keys.get("dataset_kwargs"), keys.where() + ": dataset_kwargs");
    data.files = more.get("data_files");
    more.get("trust_remote_code");  // nothing of a data set is run
    more.all_known();
  }
  const auto is_files = [](const ordered_json& value) {
    if (value.is_array())
      return !value.empty() && std::all_of(value.begin(), value.end(), [](const auto& one) { return one.is_string(); });
    return value.is_string();
  };
  auto& files = data.files;
  if (is_files(files)) files = ordered_json{{"train", files}};  // as datasets names the split of bare files
  if (!files.is_null() && !(files.is_object() && std::all_of(files.begin(), files.end(), is_files)))
    keys.fail("dataset_kwargs", "data_files is no file, list of files, or mapping of splits to these");
  if ((data.path == "json" || data.path == "parquet") && files.is_null())
    keys.fail("dataset_kwargs", "data_files is missing: it names the files of each split");
  return data;
}

void read_shots(Keys& keys, Task& task) {
  task.shot_texts = task.texts;
  task.num_fewshot = keys.number("num_fewshot");
  if (task.num_fewshot && *task.num_fewshot < 0) keys.fail("num_fewshot", "is negative");
  task.fewshot_split = keys.text("fewshot_split");
  if (!keys.has("fewshot_config")) return;
  Keys shots(keys.get("fewshot_config"), keys.where() + ": fewshot_config");
  const auto sampler = shots.text("sampler", "default");
  if (sampler != "default" && sampler != "first_n")
    shots.fail("sampler", fmt::format("'{}' is not known; there are default and first_n", sampler));
  task.first_shots = sampler == "first_n";
  if (shots.has("split")) task.fewshot_split = shots.text("split");
  shots.get("fewshot_indices");  // lm-eval 0.4.13 reads these and does not use them
  for (const auto& sample : shots.list("samples")) {
    if (!sample.is_object()) shots.fail("samples", "is no list of rows");
    task.samples.push_back(sample);
  }
  auto& texts = task.shot_texts;
  if (shots.has("doc_to_text")) texts.text = source(shots, "doc_to_text", true, false);
  if (shots.has("doc_to_choice")) texts.choice = source(shots, "doc_to_choice", false, true);
  if (shots.has("doc_to_target")) texts.target = source(shots, "doc_to_target", true, true);
  if (shots.has("gen_prefix")) texts.gen_prefix = source(shots, "gen_prefix", false, false);
  texts.target_delimiter = shots.text("target_delimiter", texts.target_delimiter);
  texts.fewshot_delimiter = shots.text("fewshot_delimiter", texts.fewshot_delimiter);
  shots.all_known();
}

void read_metrics(Keys& keys, Task& task) {
  const auto how = keys.text("process_results");
  task.gold_probability = how == "gold_probability";
  if (!how.empty() && (!task.gold_probability || task.output != TaskOutput::multiple_choice))
    keys.fail("process_results", "is a function of Python; here gold_probability is known, of multiple_choice");
  for (const auto& value : keys.list("metric_list"))
    task.metrics.push_back(metric_of(value, task.output, task.gold_probability, keys.where() + ": metric_list"));
  if (task.metrics.empty()) {
    // lm_eval/api/registry.py
    static const std::map<TaskOutput, std::vector<const char*>> kDefaults{
        {TaskOutput::multiple_choice, {"acc", "acc_norm"}},
        {TaskOutput::loglikelihood, {"perplexity", "acc"}},
        {TaskOutput::loglikelihood_rolling, {"word_perplexity", "byte_perplexity", "bits_per_byte"}},
        {TaskOutput::generate_until, {"exact_match"}}};
    for (const auto* name : kDefaults.at(task.output))
      task.metrics.push_back(metric_of({{"metric", name}}, task.output, false, keys.where()));
  }
  std::set<std::string> names;
  for (const auto& metric : task.metrics) {
    if (!names.insert(metric.name).second) keys.fail("metric_list", fmt::format("'{}' is there twice", metric.name));
    if (task.gold_probability && metric.name != "acc")
      keys.fail("metric_list", "with process_results: gold_probability there is acc alone");
  }
}

}  // namespace

Task task_of(const ordered_json& given, const std::string& file, const std::filesystem::path& folder) {
  Keys keys(given, file);
  Task task;
  task.file = file;
  task.config = given;
  task.name = keys.text("task");
  if (task.name.empty()) keys.fail("task", "is missing: the task's name");
  task.alias = keys.text("task_alias", task.name);
  task.data = data_of(keys, folder);
  task.training_split = keys.text("training_split");
  task.validation_split = keys.text("validation_split");
  task.test_split = keys.text("test_split");
  if (task.asked_split().empty()) keys.fail("test_split", "is missing, and so is validation_split: nothing is asked");
  task.columns = keys.has("columns") ? keys.get("columns") : ordered_json::object();
  if (!task.columns.is_object()) keys.fail("columns", "is no mapping of names to templates");
  for (const auto& [name, text] : task.columns.items()) {
    if (!text.is_string()) keys.fail("columns", fmt::format("'{}' is no template", name));
  }
  task.description = keys.text("description");
  const auto output = keys.text("output_type", "generate_until");
  const auto found = find_value(kOutputs, output);
  if (!found) keys.fail("output_type", fmt::format("is '{}', choose from {}", output, choices_of(kOutputs)));
  task.output = *found;
  auto& texts = task.texts;
  texts.text = source(keys, "doc_to_text", true, false);
  texts.choice = source(keys, "doc_to_choice", false, true);
  texts.target = source(keys, "doc_to_target", true, true);
  texts.gen_prefix = source(keys, "gen_prefix", false, false);
  texts.target_delimiter = keys.text("target_delimiter", " ");
  texts.fewshot_delimiter = keys.text("fewshot_delimiter", "\n\n");
  if (texts.text.is_null()) keys.fail("doc_to_text", "is missing: how a row becomes the text that is asked");
  if (texts.target.is_null()) keys.fail("doc_to_target", "is missing: which answer is right");
  if (task.output == TaskOutput::multiple_choice && texts.choice.is_null())
    keys.fail("doc_to_choice", "is missing: the answers to choose from");
  read_shots(keys, task);
  if (task.output == TaskOutput::generate_until) {
    task.generation = generation_of(keys, texts.fewshot_delimiter);
  } else if (keys.has("generation_kwargs")) {
    keys.fail("generation_kwargs", "goes with output_type generate_until");
  }
  task.filters = filters_of(keys);
  read_metrics(keys, task);
  task.count_text = source(keys, "count_text", false, false);
  if (!task.count_text.is_null() && task.output != TaskOutput::loglikelihood_rolling)
    keys.fail("count_text", "goes with output_type loglikelihood_rolling");
  if (keys.has("metadata") && keys.get("metadata").is_object() && keys.get("metadata").contains("version"))
    task.version = keys.get("metadata")["version"];
  for (const auto* key : {"tag", "should_decontaminate", "doc_to_decontamination_query"}) keys.get(key);
  keys.only("repeats", 1, "an answer is asked for once: 1 is expected");
  keys.only("unsafe_code", false, "programs that a model wrote are not run here");
  for (const auto* key : {"doc_to_image", "doc_to_audio", "use_prompt", "process_docs", "custom_dataset"})
    keys.only(key, nullptr, "is not supported");
  keys.all_known();
  return task;
}

TaskGroup group_of(const ordered_json& given, const std::string& file, std::vector<std::string> members) {
  Keys keys(given, file);
  TaskGroup group;
  group.config = given;
  group.name = keys.text("group");
  group.alias = keys.text("group_alias", group.name);
  group.members = std::move(members);
  keys.get("task");
  for (const auto& value : keys.list("aggregate_metric_list")) {
    Keys one(value, keys.where() + ": aggregate_metric_list");
    GroupMetric metric{one.text("metric"), one.flag("weight_by_size", true), {}};
    one.only("aggregation", "mean", "groups have means: mean is expected");
    if (one.has("filter_list")) metric.filters = one.texts("filter_list");
    one.all_known();
    if (metric.metric.empty()) keys.fail("aggregate_metric_list", "a metric has no name");
    group.metrics.push_back(std::move(metric));
  }
  if (keys.has("metadata") && keys.get("metadata").is_object() && keys.get("metadata").contains("version"))
    group.version = keys.get("metadata")["version"];
  keys.get("tag");
  keys.all_known();
  return group;
}

}  // namespace fsdp
