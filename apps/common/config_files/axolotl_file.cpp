#include "apps/common/config_files/axolotl_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "apps/common/finetune_options.hpp"
#include "apps/common/remedies.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/yaml/yaml_value.hpp"
#include "lib/hub/snapshot_store.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

namespace fsdp {
namespace {

using Kind = YamlValue::Kind;

/// True for a text whose first line, but for comments, is YAML's: "key: value", a list, a flow mapping, a directive.
bool begins_as_yaml(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto line = CLI::detail::trim_copy(std::string(text.substr(begin, end - begin)));
    begin = end + 1;
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '{' || line.front() == '%' || line.starts_with("---") || line.starts_with("- ") ||
        line == "-" || line.starts_with("? ") || line.starts_with("!"))
      return true;
    const auto colon = line.find(':');
    const bool ends_key =
        colon != line.npos && (colon + 1 == line.size() || line[colon + 1] == ' ' || line[colon + 1] == '\t');
    return ends_key && line.find('=') > colon;
  }
  return false;
}

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

/// True for values that axolotl takes as not given.
bool says_nothing(const YamlValue& value) {
  switch (value.kind) {
    case Kind::null:
      return true;
    case Kind::text:
      return value.text.empty();
    case Kind::list:
      return value.items.empty();
    case Kind::map:
      return value.entries.empty();
    default:
      return false;
  }
}

YamlValue word_at(const std::string& text, std::size_t line) {
  YamlValue value;
  value.kind = Kind::text;
  value.text = text;
  value.line = line;
  return value;
}

std::optional<double> number_in(const YamlValue& value) {
  double number = 0;
  const auto* end = value.text.data() + value.text.size();
  const auto read = std::from_chars(value.text.data(), end, number);
  const bool is_number = value.is_scalar() && read.ec == std::errc() && read.ptr == end && std::isfinite(number);
  return is_number ? std::optional(number) : std::nullopt;
}

/// A chat template of axolotl whose texts are those of one here.
struct SameTemplate {
  std::string_view there, here;
};
constexpr std::array kTemplates{SameTemplate{"chatml", "chatml"}, SameTemplate{"llama3", "llama3"},
                                SameTemplate{"gemma", "gemma"}, SameTemplate{"gemma3", "gemma3"},
                                SameTemplate{"qwen_25", "qwen2.5"}};

/// Roles of messages, with the names that become them in axolotl and here, with blanks between.
struct Role {
  std::string_view role, names;
};
constexpr std::array kRoles{Role{"user", "user human"}, Role{"assistant", "assistant gpt chatgpt model"},
                            Role{"system", "system"}, Role{"tool", "tool observation function_response tool_response"}};

/// Plugins that compute the same in other ways, or that report.
constexpr std::array<std::string_view, 4> kPlugins{
    "axolotl.integrations.liger.LigerPlugin", "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin",
    "axolotl.integrations.kernels.KernelsPlugin", "axolotl.integrations.swanlab.SwanLabPlugin"};

/// Matrices of the blocks, which lora_target_linear trains without being named.
constexpr std::array<std::string_view, 7> kLinear{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                  "gate_proj", "up_proj", "down_proj"};

/// A value that axolotl has for a key that the file leaves out, where it is another one here.
struct Default {
  std::string_view key, option, value;
  std::string_view instead = {};  ///< an option that also says it
};
constexpr std::array kDefaults{Default{"lr_scheduler", "lr-schedule", "cosine"},
                               Default{"warmup_ratio", "warmup-ratio", "0.03", "warmup-steps"},
                               Default{"weight_decay", "weight-decay", "0"},
                               Default{"bf16", "precision", "bf16"},
                               Default{"micro_batch_size", "batch-size", "1", "total-batch-size"},
                               Default{"sequence_len", "seq-len", "512"},
                               Default{"save_strategy", "save-every", "1epoch"},
                               Default{"save_total_limit", "keep-last", "4"}};
/// Transformers' trainer does this, and no key says so: the warm-up begins at 0, and vectors do not decay.
constexpr std::array kTrainersOwn{Default{"", "warmup-from", "0"}, Default{"", "decay-all", "false"}};

/// Values that a key of the file gives to an option.
struct Given {
  CLI::ConfigItem item;
  std::string key;
  std::size_t line = 0;
};

/// How a set of data is read.
struct DataSet {
  std::string path, form, field;
};

/// Makes options of a file's keys.
class Translation {
 public:
  Translation(const OptionTable& table, const YamlValue& root) : table_(table) {
    if (root.kind == Kind::null) return;
    if (root.kind != Kind::map) {
      refuse(root.line, "", "the file is no mapping of keys to values");
      return;
    }
    for (const auto& entry : root.entries) {
      if (!says_nothing(entry.value)) top_.emplace(with_dashes(entry.key), &entry.value);
      if (entry.value.named) for_aliases_.insert(entry.key);
    }
    for (const auto& entry : root.entries) translate(with_dashes(entry.key), entry.key, entry.line, entry.value);
    check_adapter(root);
    check_validation_data();
    if (problems_.empty()) add_defaults();
  }

  /// Returns the options. \throws CLI::FileError with all that is wrong
  std::vector<Given> given() const {
    if (problems_.empty()) return given_;
    std::string text = "--config: ";
    if (problems_.size() > 1) text += fmt::format("{} errors:", problems_.size());
    for (const auto& [line, problem] : problems_) text += (problems_.size() > 1 ? "\n  " : "") + problem;
    throw CLI::FileError(text, CLI::ExitCodes::FileError);
  }
  const AxolotlNotes& notes() const { return notes_; }

 private:
  struct Handler {
    void (Translation::*take)(const std::string& key, const YamlValue& value, std::size_t line);
    std::optional<Kind> kind = {};  ///< of the values that it takes; none: one word
    bool or_word = false;           ///< words, too
  };

  void refuse(std::size_t line, const std::string& key, const std::string& why) {
    problems_.emplace(line, fmt::format("line {}: {}{}", line, key.empty() ? "" : key + ": ", why));
  }
  void ignore(const std::string& key) { notes_.ignored.push_back(key); }

  /// The value of a key of the file that says something; null: there is none.
  const YamlValue* top(const std::string& name) const {
    const auto found = top_.find(name);
    return found == top_.end() ? nullptr : found->second;
  }
  bool is_true(const std::string& name) const { return top(name) != nullptr && top(name)->text == "true"; }

  /// transformers' schedule constant has no warm-up, whatever is given.
  bool has_no_warmup() const {
    const auto* schedule = top("lr-scheduler");
    return schedule != nullptr && schedule->text == "constant";
  }

  const Given* find(std::string_view option) const {
    const auto* wanted = table_.get_option_no_throw("--" + std::string(option));
    const auto found = std::find_if(given_.begin(), given_.end(), [&](const auto& given) {
      return table_.get_option_no_throw("--" + given.item.name) == wanted;
    });
    return found == given_.end() ? nullptr : &*found;
  }

  /// Gives values to an option, which two keys may do with the same values.
  void give(const std::string& key, std::size_t line, const std::string& option, std::vector<std::string> values) {
    const auto* known = table_.get_option_no_throw("--" + option);
    if (known == nullptr || !known->get_configurable()) return refuse(line, key, "no config file sets " + option);
    if (const auto* before = find(option); before == nullptr) {
      Given given{.item = {}, .key = key, .line = line};
      given.item.name = option;
      given.item.inputs = std::move(values);
      given_.push_back(std::move(given));
    } else if (before->item.inputs != values) {
      refuse(line, key,
             fmt::format("sets --{} {}, and {} on line {} sets it to {}: leave one of them out", option,
                         CLI::detail::join(values, ","), before->key, before->line,
                         CLI::detail::join(before->item.inputs, ",")));
    }
  }

  /// \param name  of the key, with dashes, as the tables have it
  /// \param key   as messages name it
  void translate(const std::string& name, const std::string& key, std::size_t line, const YamlValue& value) {
    if (says_nothing(value)) return ignore(key);
    const bool of_adapter = name.starts_with("lora-") || name.starts_with("peft-");
    if (of_adapter && top("adapter") == nullptr && top("lora-rank") == nullptr) return ignore(key);
    if (name.starts_with("warmup-") && has_no_warmup()) return ignore(key);
    if (const auto found = handlers().find(name); found != handlers().end()) {
      const auto& handler = found->second;
      if (has_kind(key, line, value, handler.kind, handler.or_word)) (this->*handler.take)(key, value, line);
      return;
    }
    if (changes_nothing(name, value.text)) return ignore(key);
    if (value.kind == Kind::map) return refuse_unknown(name, key, line, "a mapping");
    look_up(name, key, line, value);
  }

  /// Refuses a value of another kind. \param kind  none: one word
  bool has_kind(const std::string& key, std::size_t line, const YamlValue& value, std::optional<Kind> kind,
                bool or_word = false) {
    if (value.kind == kind || ((!kind || or_word) && value.is_scalar())) return true;
    refuse(line, key, fmt::format("{} is expected", !kind ? "one value" : kind == Kind::list ? "a list" : "a mapping"));
    return false;
  }

  static const std::map<std::string_view, Handler>& handlers() {
    using T = Translation;
    static const std::map<std::string_view, Handler> all{
        {"adapter", {&T::adapter}},
        {"load-in-4bit", {&T::load_in_4bit}},
        {"lora-target-modules", {&T::target_modules, Kind::list, true}},
        {"lora-rank-pattern", {&T::pattern, Kind::map}},
        {"lora-alpha-pattern", {&T::pattern, Kind::map}},
        {"bf16", {&T::precision}},
        {"fp16", {&T::precision}},
        {"gradient-checkpointing", {&T::checkpointing}},
        {"batch-size", {&T::batch_size}},
        {"warmup-steps", {&T::warmup_steps}},
        {"lr-scheduler", {&T::schedule}},
        {"adam-beta1", {&T::betas}},
        {"adam-beta2", {&T::betas}},
        {"datasets", {&T::datasets, Kind::list}},
        {"test-datasets", {&T::datasets, Kind::list}},
        {"val-set-size", {&T::val_set_size}},
        {"chat-template", {&T::chat_template}},
        {"chat-template-jinja", {&T::chat_template}},
        {"eval-steps", {&T::interval}},
        {"evals-per-epoch", {&T::interval}},
        {"save-steps", {&T::interval}},
        {"saves-per-epoch", {&T::interval}},
        {"eval-strategy", {&T::strategy}},
        {"save-strategy", {&T::strategy}},
        {"output-dir", {&T::output_dir}},
        {"special-tokens", {&T::parts, Kind::map}},
        {"fsdp", {&T::words, Kind::list, true}},
        {"fsdp-config", {&T::fsdp_config, Kind::map}},
        {"plugins", {&T::plugins, Kind::list}},
        {"base-model-config", {&T::model_config}},
        {"revision-of-model", {&T::model_revision}},
        {"base-model", {&T::model}}};
    return all;
  }

  /// Finds the option of a scalar or a list in the table of other trainers' names.
  void look_up(const std::string& name, const std::string& key, std::size_t line, const YamlValue& value) try {
    std::vector<std::string> values;
    for (const auto& item : value.items) {
      if (!item.is_scalar() || item.kind == Kind::null) return refuse(item.line, key, "a list of words is expected");
      values.push_back(item.text);
    }
    const auto words = table_.rewritten({"--" + name + "=" + (value.items.empty() ? value.text : "...")});
    if (words.empty()) return ignore(key);
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      const auto option = words[i].substr(2, equals == std::string::npos ? equals : equals - 2);
      const auto* known = table_.get_option_no_throw("--" + option);
      if (known == nullptr) return refuse_unknown(name, key, line, "");
      const bool takes_several =
          known->get_items_expected_max() > 1 || known->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
      if (!value.items.empty() && !takes_several)
        return refuse(line, key, fmt::format("is a list, and --{} takes one value", option));
      if (value.items.empty() || equals == std::string::npos) {
        const bool is_apart = i + 1 < words.size() && !words[i + 1].starts_with("--");
        values = {equals != std::string::npos ? words[i].substr(equals + 1) : is_apart ? words[i + 1] : "true"};
        i += is_apart && equals == std::string::npos ? 1 : 0;
      }
      if (known->get_delimiter() != '\0' && std::ranges::any_of(value.items, [&](const auto& item) {
            return item.text.find(known->get_delimiter()) != std::string::npos;
          }))
        return refuse(line, key, fmt::format("--{} takes no name with '{}'", option, known->get_delimiter()));
      give(key, line, option, values);
    }
  } catch (const UsageError& advice) {
    const auto text = told(advice);
    constexpr std::string_view kNoOption = " is no option here: ";
    const auto at = text.find(kNoOption);
    refuse(line, key, at == text.npos ? text : text.substr(at + kNoOption.size()));
  }

  /// \param what  what the value is, for a key that takes another kind; "": any
  void refuse_unknown(const std::string& name, const std::string& key, std::size_t line, const std::string& what) {
    try {
      (void)table_.rewritten({"--" + name + "=..."});
    } catch (const UsageError&) {
      return look_up(name, key, line, word_at("...", line));
    }
    if (for_aliases_.contains(key)) return ignore(key);
    refuse(line, key,
           what.empty() ? "has no counterpart here; docs/tutorials.md lists the keys that have one"
                        : fmt::format("has no counterpart here that takes {}", what));
  }

  void adapter(const std::string& key, const YamlValue& value, std::size_t line) {
    if (value.text != "lora" && value.text != "qlora")
      return refuse(line, key, fmt::format("'{}' is neither lora nor qlora, which are trained here", value.text));
    for (const char* needed : {"lora-r", "lora-alpha"}) {
      if (top(needed) == nullptr && top("lora-model-dir") == nullptr)
        refuse(
            line, key,
            fmt::format("{} is missing: give it a number", needed == std::string("lora-r") ? "lora_r" : "lora_alpha"));
    }
    if (value.text == "qlora" && !is_true("load-in-4bit"))
      refuse(line, key, "qlora needs load_in_4bit: true, as in axolotl");
  }

  void load_in_4bit(const std::string& key, const YamlValue& value, std::size_t line) {
    look_up("load-in-4bit", key, line, value);
    if (value.text != "true") return;
    if (top("adapter") == nullptr) return refuse(line, key, "4-bit weights are trained through adapters: give adapter");
    give(key, line, "double-quant", {"true"});  // axolotl's configuration of bitsandbytes
  }

  /// peft trains other matrices by default than are trained here.
  void check_adapter(const YamlValue& root) {
    if (top("adapter") == nullptr || find("lora-targets") != nullptr || top("lora-model-dir") != nullptr) return;
    const bool refused = !top("adapter")->text.ends_with("lora") || top("lora-target-modules") != nullptr ||
                         is_true("lora-target-linear");
    for (const auto& entry : root.entries) {
      if (with_dashes(entry.key) == "adapter" && !refused)
        refuse(entry.line, entry.key,
               "give lora_target_modules, or lora_target_linear: true for all matrices of the blocks");
    }
  }

  /// Beside lora_target_linear names of its matrices add nothing.
  void target_modules(const std::string& key, const YamlValue& value, std::size_t line) {
    const bool adds_nothing = value.kind == Kind::list && std::ranges::all_of(value.items, [](const auto& item) {
                                return std::ranges::find(kLinear, item.text) != kLinear.end();
                              });
    if (is_true("lora-target-linear") && adds_nothing) return ignore(key);
    look_up("lora-target-modules", key, line, value);
  }

  /// A mapping of names to numbers: "q_proj=4,v_proj=8".
  void pattern(const std::string& key, const YamlValue& value, std::size_t line) {
    std::string text;
    for (const auto& entry : value.entries) text += (text.empty() ? "" : ",") + entry.key + "=" + entry.value.text;
    give(key, line, with_dashes(key), {text});
  }

  /// bf16: auto is bf16, unless fp16 is asked for.
  void precision(const std::string& key, const YamlValue& value, std::size_t line) {
    const auto name = with_dashes(key);
    if (value.text == "auto" && name == "bf16") {
      if (is_true("fp16")) return ignore(key);
      return give(key, line, "precision", {"bf16"});
    }
    if (value.text == "true") return give(key, line, "precision", {name});
    if (value.text != "false") return refuse(line, key, fmt::format("'{}' is neither true nor false", value.text));
    const auto* other = top(name == "bf16" ? "fp16" : "bf16");
    if (name == "bf16" && !is_true("fp16")) return give(key, line, "precision", {"float32"});
    if (name == "fp16" && other == nullptr) return give(key, line, "precision", {"bf16"});  // which auto chooses
    ignore(key);
  }

  void checkpointing(const std::string& key, const YamlValue& value, std::size_t line) {
    if (value.text == "true" || value.text == "offload") {
      give(key, line, "activation-checkpointing", {"all"});
      if (value.text == "offload") give(key, line, "offload-activations", {"true"});
    } else if (value.text == "false") {
      ignore(key);
    } else {
      refuse(line, key, fmt::format("'{}' is none of true, false and offload", value.text));
    }
  }

  void batch_size(const std::string& key, const YamlValue&, std::size_t line) {
    refuse(line, key,
           "is the sequences of a step there and of a micro-batch here: give micro_batch_size and "
           "gradient_accumulation_steps");
  }

  /// axolotl makes two steps of one.
  void warmup_steps(const std::string& key, const YamlValue& value, std::size_t line) {
    give(key, line, "warmup-steps", {value.text == "1" ? "2" : value.text});
  }

  void schedule(const std::string& key, const YamlValue& value, std::size_t line) {
    give(key, line, "lr-schedule", {value.text});
    if (!has_no_warmup()) return;
    give(key, line, "warmup-steps", {"0"});
    give(key, line, "warmup-ratio", {"0"});
  }

  void betas(const std::string& key, const YamlValue&, std::size_t line) {
    const auto* first = top("adam-beta1");
    const auto* second = top("adam-beta2");
    give(key, line, "betas", {first == nullptr ? "0.9" : first->text, second == nullptr ? "0.999" : second->text});
  }

  void val_set_size(const std::string& key, const YamlValue& value, std::size_t line) {
    const auto share = number_in(value);
    if (!share) return refuse(line, key, fmt::format("'{}' is no number", value.text));
    if (*share >= 1)
      return refuse(line, key,
                    fmt::format("{} is a number of samples: give a share below 1, such as 0.05", value.text));
    give(key, line, "val-split", {value.text});
  }

  void model(const std::string& key, const YamlValue& value, std::size_t line) {
    const auto* revision = top("revision-of-model");
    give(key, line, "model", {value.text + (revision == nullptr ? "" : "@" + revision->text)});
  }
  void model_revision(const std::string& key, const YamlValue&, std::size_t line) {
    if (top("base-model") == nullptr) refuse(line, key, "base_model is missing");
  }
  void model_config(const std::string& key, const YamlValue& value, std::size_t line) {
    const auto* model = top("base-model");
    if (model != nullptr && model->text == value.text) return ignore(key);
    refuse(line, key, "the model's folder has its config.json: leave it out");
  }

  /// A run's folder is OUT/RUN.
  void output_dir(const std::string& key, const YamlValue& value, std::size_t line) {
    auto path = std::filesystem::path(value.text).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    const auto name = path.filename().string();
    if (!value.is_scalar() || name.empty() || name == "." || name == "..")
      return refuse(line, key, "is no folder with a name of its own: give one such as ./outputs/run");
    give(key, line, "out-dir", {path.has_parent_path() ? path.parent_path().string() : "."});
    give(key, line, "run-name", {name});
  }

  void chat_template(const std::string& key, const YamlValue& value, std::size_t line) {
    const bool is_text = key.ends_with("jinja");
    if (is_text && value.text.find_first_of("{\n") != std::string::npos)
      return refuse(line, key, "is a template: write it to a file, and give the file's name");
    if (is_text) return give(key, line, "chat-template", {value.text});
    if (value.text == "jinja") return ignore(key);
    if (value.text == "tokenizer_default") return give(key, line, "chat-template", {"auto"});
    const auto same = std::ranges::find(kTemplates, value.text, &SameTemplate::there);
    if (same != kTemplates.end()) return give(key, line, "chat-template", {std::string(same->here)});
    std::string names;
    for (const auto& one : kTemplates) names += fmt::format("{}, ", one.there);
    refuse(line, key,
           fmt::format("'{}' is none of {}tokenizer_default: write the template to a file, and give its name as "
                       "chat_template_jinja",
                       value.text, names));
  }

  /// Steps or a share of the run (save_steps), or how often in an epoch (saves_per_epoch).
  void interval(const std::string& key, const YamlValue& value, std::size_t line) {
    const auto name = with_dashes(key);
    const std::string option = name.starts_with("eval") ? "eval-every" : "save-every";
    const auto number = number_in(value);
    if (!number || *number < 0) return refuse(line, key, fmt::format("'{}' is no number of at least 0", value.text));
    if (*number == 0) return ignore(key);
    const auto* epochs = top("num-epochs");
    const double length = epochs == nullptr ? 1 : number_in(*epochs).value_or(1);
    const bool per_epoch = name.ends_with("-per-epoch");
    if (!per_epoch && *number >= 1) return give(key, line, option, {value.text});
    const double share = per_epoch ? 1 / (*number * length) : *number;
    if (per_epoch && share >= 1) {  // no share of the run: axolotl does as without the key
      return option == "eval-every" ? ignore(key) : give(key, line, option, {"1epoch"});
    }
    if (const auto* steps = top("max-steps"); steps != nullptr && number_in(*steps).value_or(0) > 0)
      return give(key, line, option, {fmt::format("{:.0f}", std::ceil(*number_in(*steps) * share))});
    give(key, line, option, {fmt::format("{}epoch", per_epoch ? 1 / *number : share * length)});
  }

  void strategy(const std::string& key, const YamlValue& value, std::size_t line) {
    const std::string kind = key.starts_with("eval") ? "eval" : "save";
    if (value.text == "epoch") return give(key, line, kind + "-every", {"1epoch"});
    if (value.text == "steps" && (top(kind + "-steps") != nullptr || top(kind + "s-per-epoch") != nullptr))
      return ignore(key);
    // "no" without quotes is false.
    if (value.text == "no" || value.text == "false") {
      give(key, line, kind + "-every", {"0"});
      if (kind == "save") give(key, line, "save-interval-minutes", {"0"});
      return;
    }
    refuse(line, key,
           value.text == "best" ? "give --keep-best loss in place of it"
                                : fmt::format("'{}' is none of epoch, no, and steps with {}_steps", value.text, kind));
  }

  /// Each entry as a key of its own: special_tokens.pad_token.
  void parts(const std::string& key, const YamlValue& value, std::size_t) {
    for (const auto& entry : value.entries)
      special_token(key + "." + entry.key, with_dashes(key) + "." + with_dashes(entry.key), entry);
  }
  void special_token(const std::string& key, const std::string& name, const YamlEntry& entry) {
    if (says_nothing(entry.value) || changes_nothing(name, entry.value.text)) return ignore(key);
    const auto* model = top("tokenizer-config") != nullptr ? top("tokenizer-config") : top("base-model");
    const std::string part = entry.key, where = model == nullptr ? "" : model->text;
    try {
      const auto own =
          named_special_tokens(find_snapshot(where, RepoType::model, hub_settings(process_environment())).string());
      const auto found = own.find(part);
      if (found != own.end() && found->second == entry.value.text) return ignore(key);
      refuse(entry.line, key,
             fmt::format("'{}' is not the tokenizer's own{}: set it in tokenizer_config.json of the model",
                         entry.value.text, found == own.end() ? "" : fmt::format(", which is '{}'", found->second)));
    } catch (const Error& error) {
      refuse(entry.line, key, fmt::format("is not known to be the tokenizer's own: {}", told(error)));
    }
  }

  /// "full_shard auto_wrap", or a list of these words.
  void words(const std::string& key, const YamlValue& value, std::size_t line) {
    std::vector<std::string> all;
    for (const auto& item : value.items) all.push_back(item.text);
    if (value.items.empty()) all = CLI::detail::split_up(value.text);
    for (const auto& word : all) look_up(with_dashes(key), key, line, word_at(word, line));
  }

  void fsdp_config(const std::string& key, const YamlValue& value, std::size_t) {
    for (const auto& entry : value.entries) {
      const auto plain = with_dashes(entry.key);
      const auto name = plain.starts_with("fsdp-") ? plain : "fsdp-" + plain;
      const auto shown = key + "." + entry.key;
      const bool by_size = name == "fsdp-auto-wrap-policy" && entry.value.text == "SIZE_BASED_WRAP";
      if (name == "fsdp-min-num-params") {
        give(shown, entry.line, "wrap", {"size:" + entry.value.text});
      } else if (!by_size) {  // which goes with min_num_params
        translate(name, shown, entry.line, entry.value);
      }
    }
  }

  void plugins(const std::string& key, const YamlValue& value, std::size_t) {
    for (const auto& item : value.items) {
      if (std::ranges::find(kPlugins, item.text) == kPlugins.end())
        refuse(item.line, key, fmt::format("{} is not available here", item.text));
    }
    ignore(key);
  }

  void datasets(const std::string& key, const YamlValue& value, std::size_t line) {
    const bool test = key.starts_with("test");
    if (value.items.front().kind != Kind::map) return refuse(line, key, "mappings with path and type are expected");
    if (test && value.items.size() > 1)
      refuse(value.items[1].line, key,
             "--val-data takes one data set here, and this is the second: put their files of one form into a folder, "
             "and give the folder as path");
    auto& set = test ? validation_ : training_;
    if (test) line_of_validation_ = line;
    has_several_ = value.items.size() > 1;
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      const auto& item = value.items[i];
      const auto shown = fmt::format("{}[{}]", key, i);
      DataSet one;
      for (const auto& entry : item.entries) read_data_key(shown, entry, test, one);
      if (one.path.empty()) return refuse(item.line, shown, "path is missing");
      if (one.form.empty() && problems_.empty())
        refuse(item.line, shown, "type is missing: chat_template and completion are read here");
      if (set && (one.form != set->form || one.field != set->field))
        refuse(item.line, shown,
               "its type and field must be those of the first set; sources of several kinds go into a file for "
               "train_data, in place of datasets (docs/data-at-scale.md)");
      if (!set) set = one;
      if (std::ranges::find(paths, one.path) != paths.end())
        return refuse(item.line, shown, one.path + " is there twice: one source is read once an epoch");
      paths.push_back(one.path);
    }
    const auto shown = key + "[0]";
    give(shown + ".path", line, test ? "val-data" : "train-data", {CLI::detail::join(paths, ",")});
    if (!set->form.empty()) give(shown + ".type", line, "data-form", {set->form});
    if (!set->field.empty())
      give(shown + (set->form == "text" ? ".field" : ".field_messages"), line, "data-field", {set->field});
  }

  /// Both sets are read by the same options.
  void check_validation_data() {
    if (!validation_ || !training_ || !problems_.empty()) return;
    if (validation_->form != training_->form || validation_->field != training_->field)
      refuse(line_of_validation_, "test_datasets", "its type and field must be those of datasets");
  }

  void read_data_key(const std::string& set, const YamlEntry& entry, bool test, DataSet& data) {
    const auto name = with_dashes(entry.key);
    const auto key = set + "." + entry.key;
    const auto& value = entry.value;
    static const std::set<std::string_view> without_effect{"name", "trust-remote-code", "preprocess-shards",
                                                           "temperature"};
    if (says_nothing(value) || without_effect.contains(name)) return ignore(key);
    static const std::map<std::string_view, Kind> kinds{
        {"roles", Kind::map}, {"message-property-mappings", Kind::map}, {"roles-to-train", Kind::list}};
    const auto kind = kinds.find(name);
    const bool has_own_type = name == "type" && value.kind == Kind::map;  // refused by itself
    if (!has_own_type &&
        !has_kind(key, entry.line, value, kind == kinds.end() ? std::nullopt : std::optional(kind->second)))
      return;
    if (name == "path") {
      data.path = value.text;
    } else if (name == "type") {
      if (value.text == "chat_template") data.form = "messages";
      if (value.text == "completion") data.form = "text";
      if (data.form.empty()) refuse_type(key, value, entry.line);
    } else if (name == "field" || name == "field-messages") {
      data.field = value.text;
    } else if (const auto rows = name == "split" && !test ? rows_of(value.text) : ""; !rows.empty()) {
      if (has_several_)
        return refuse(entry.line, key,
                      "a part of one of several sets: write it as max_rows into a file of sources for train_data, in "
                      "place of datasets (docs/data-at-scale.md)");
      give(key, entry.line, "max-rows", {rows});
    } else if (name == "split") {
      keep(key, entry, value.text == "train", "files here have one split, train: name the file of another one as path");
    } else if (name == "ds-type") {
      check_kind(key, entry, data);
    } else if (name == "roles") {
      check_roles(key, entry);
    } else if (name == "message-property-mappings") {
      for (const auto& part : value.entries) check_property(key + "." + part.key, part.key, part);
    } else if (name == "message-field-role" || name == "message-field-content") {
      check_property(key, name.substr(name.rfind('-') + 1), entry);
    } else if (name == "roles-to-train") {
      const bool usual = value.kind == Kind::list && std::ranges::all_of(value.items, [](const auto& item) {
                           return item.text == "assistant" || item.text == "gpt";
                         });
      keep(key, entry, usual, "the loss counts the assistant's messages, or all with train_on_inputs: true");
    } else if (name == "train-on-eos" || name == "train-on-eot") {
      keep(key, entry, value.text == "turn", "answers are learnt with the mark that ends them, which is turn");
    } else if (name == "chat-template" || name == "chat-template-jinja") {
      chat_template(key, value, entry.line);
    } else {
      refuse(entry.line, key,
             "has no counterpart here; path, type, field, field_messages, message_property_mappings, roles, "
             "roles_to_train, train_on_eos, chat_template, split and ds_type have one");
    }
  }

  /// Returns N of "train[:N]"; "": it is something else.
  static std::string rows_of(const std::string& split) {
    constexpr std::string_view kBegin = "train[:";
    if (!split.starts_with(kBegin) || !split.ends_with(']')) return "";
    const auto rows = split.substr(kBegin.size(), split.size() - kBegin.size() - 1);
    return rows.empty() || rows.find_first_not_of("0123456789") != rows.npos || rows.starts_with('0') ? "" : rows;
  }

  /// \param same  the value says what is done here anyway
  void keep(const std::string& key, const YamlEntry& entry, bool same, const std::string& why) {
    if (same) return ignore(key);
    refuse(entry.line, key, fmt::format("{}{}", entry.value.is_scalar() ? "'" + entry.value.text + "': " : "", why));
  }

  void refuse_type(const std::string& key, const YamlValue& value, std::size_t line) {
    std::string why = "chat_template and completion are read here";
    if (value.text.starts_with("alpaca"))
      why =
          "writes words of its own around instruction and output: make prompts and completions of them, as "
          "docs/tutorials.md shows, and give train_data and pairs in place of datasets";
    if (value.text.starts_with("sharegpt")) why = "give type: chat_template, field_messages: conversations";
    refuse(line, key, fmt::format("'{}': {}", value.is_scalar() ? value.text : "a mapping", why));
  }

  /// The kind of a file follows from its name here.
  void check_kind(const std::string& key, const YamlEntry& entry, const DataSet& data) {
    const auto& kind = entry.value.text;
    static const std::map<std::string_view, std::set<std::string>> endings{{"json", {".json", ".jsonl"}},
                                                                           {"parquet", {".parquet"}},
                                                                           {"csv", {".csv"}},
                                                                           {"text", {".txt"}},
                                                                           {"arrow", {".arrow"}}};
    auto path = std::filesystem::path(data.path);
    if (path.extension() == ".gz" || path.extension() == ".zst") path = path.stem();
    const auto known = endings.find(kind);
    const bool same = known != endings.end() && (data.path.empty() || path.extension().empty() ||
                                                 known->second.contains(path.extension().string()));
    keep(key, entry, same, "the kind of a file follows from the end of its name: name it so");
  }

  void check_roles(const std::string& key, const YamlEntry& entry) {
    for (const auto& role : entry.value.entries) {
      const auto known = std::ranges::find(kRoles, role.key, &Role::role);
      const auto names =
          known == kRoles.end() ? std::vector<std::string>() : CLI::detail::split_up(std::string(known->names));
      if (!has_kind(key + "." + role.key, role.line, role.value, Kind::list)) continue;
      for (const auto& name : role.value.items) {
        if (std::ranges::find(names, name.text) == names.end())
          refuse(name.line, key + "." + role.key,
                 fmt::format("'{}' does not become {} here: rename it in the data", name.text, role.key));
      }
    }
    ignore(key);
  }

  /// Messages have role and content, or, in ShareGPT's layout, from and value.
  void check_property(const std::string& key, const std::string& property, const YamlEntry& entry) {
    const auto& name = entry.value.text;
    const bool same =
        name == property || (property == "role" && name == "from") || (property == "content" && name == "value");
    keep(key, entry, same, "messages have role and content, or from and value: rename it in the data");
  }

  void add_defaults() {
    for (const auto& usual : kDefaults) {
      const auto is_open = [&](std::string_view option) {
        return option.empty() ||
               (find(option) == nullptr && table_.get_option("--" + std::string(option))->count() == 0);
      };
      if (!is_open(usual.option) || !is_open(usual.instead)) continue;
      notes_.left_out.push_back(fmt::format("{}: {}", usual.key, usual.value));
      give(std::string(usual.key), 0, std::string(usual.option), {std::string(usual.value)});
    }
    for (const auto& usual : kTrainersOwn) {
      if (find(usual.option) == nullptr) give("", 0, std::string(usual.option), {std::string(usual.value)});
    }
  }

  const OptionTable& table_;
  std::map<std::string, const YamlValue*> top_;  ///< by the keys with dashes, where they say something
  std::set<std::string> for_aliases_;            ///< keys of the file whose values have anchors
  std::vector<Given> given_;
  AxolotlNotes notes_;
  std::multimap<std::size_t, std::string> problems_;  ///< by their lines
  std::optional<DataSet> training_, validation_;
  std::size_t line_of_validation_ = 0;
  bool has_several_ = false;  ///< sets in the list that is being read
};

/// \throws CLI::FileError
std::vector<Given> translate(const OptionTable& table, const std::string& text, AxolotlNotes& notes) try {
  const auto root = read_yaml(text);
  const Translation translation(table, root);
  notes = translation.notes();
  return translation.given();
} catch (const FormatError& error) {
  throw CLI::FileError(std::string("--config: ") + error.what(), CLI::ExitCodes::FileError);
}

}  // namespace

std::vector<CLI::ConfigItem> AxolotlFile::from_config(std::istream& input) const {
  const std::string text(std::istreambuf_iterator<char>(input), {});
  if (!begins_as_yaml(text)) {
    std::istringstream again(text);
    return ConfigFile::from_config(again);
  }
  std::vector<CLI::ConfigItem> found;
  for (const auto& given : translate(table_, text, notes_)) found.push_back(given.item);
  return found;
}

Ignored log_config(const OptionTable& table, const AxolotlNotes& notes, const Logger& log) {
  Ignored ignored;
  if (notes.ignored.empty() && notes.left_out.empty()) return ignored;
  const auto file = table.get_option("--config")->as<std::string>();
  ignored.add(file, notes.ignored);
  log_ignored(ignored, log);
  if (!notes.left_out.empty())
    log.info(fmt::format("left out  {}: as in axolotl {}", file, CLI::detail::join(notes.left_out, ", ")));
  return ignored;
}

std::size_t AxolotlFile::line_of_option(std::istream& input, const std::vector<std::string>& names) const {
  const std::string text(std::istreambuf_iterator<char>(input), {});
  if (!begins_as_yaml(text)) {
    std::istringstream again(text);
    return ConfigFile::line_of_option(again, names);
  }
  std::size_t first = 0;
  AxolotlNotes again;
  for (const auto& given : translate(table_, text, again)) {
    const bool is_named = std::ranges::find(names, given.item.name) != names.end();
    if (is_named && (first == 0 || given.line < first)) first = given.line;
  }
  return first;
}

}  // namespace fsdp
