#include "apps/common/app_main.hpp"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace fsdp {
namespace {

constexpr std::string_view kChoices = "choose from ";  // begins the name of the validator of name_choices()

/// For "block, none, size:N (N parameters per unit)" returns block, none and size:N.
std::vector<std::string> words_of(std::string text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(", ", at), text.size());
    const auto word = text.substr(at, end - at);
    if (!word.starts_with("or ")) words.push_back(word.substr(0, word.find(' ')));
    at = end + 2;
  }
  return words;
}

std::vector<std::string> choices_of(CLI::Option& option) {
  const auto type = option.get_type_name();  // CLI::IsMember lists the choices there
  if (const auto open = type.find(":{"); open != std::string::npos) {
    auto inside = type.substr(open + 2, type.find('}') - open - 2);
    for (std::size_t at = 0; (at = inside.find(',', at)) != std::string::npos; at += 2) inside.replace(at, 1, ", ");
    return words_of(inside);
  }
  try {
    for (int i = 0;; ++i) {
      const auto& name = option.get_validator(i)->get_name();
      if (name.starts_with(kChoices)) return words_of(name.substr(kChoices.size()));
    }
  } catch (const CLI::OptionNotFound&) {  // that was the last one
    return {};
  }
}

nlohmann::json describe(CLI::Option& option) {
  nlohmann::json names = nlohmann::json::array();
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  if (option.get_positional()) names.push_back(option.get_name(true, false));
  const auto type = option.get_type_name();
  const bool flag = option.get_items_expected_max() == 0;
  return {{"names", names},
          {"group", option.get_group()},
          {"description", option.get_description()},
          {"type", flag ? "" : type.substr(0, type.find(':'))},
          {"range", flag || type.find(':') == std::string::npos ? "" : type.substr(type.find(':') + 1)},
          {"default", option.get_default_str()},
          {"flag", flag},
          {"several", option.get_items_expected_max() > option.get_type_size_min() ||
                          option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll},
          {"required", option.get_required()},
          {"positional", option.get_positional()},
          {"choices", choices_of(option)}};
}

}  // namespace

CLI::Option* name_choices(CLI::Option* option, const std::string& choices) {
  const auto accept = [](const std::string&) { return std::string(); };
  return option->check(CLI::Validator(accept, "", std::string(kChoices) + choices));
}

bool asks_for_description(int argc, char** argv) {
  return argc == 2 && std::string_view(argv[1]) == "--describe-options";
}

std::string describe_options(CLI::App& app) {
  const auto formatter = std::dynamic_pointer_cast<const CLI::Formatter>(app.get_formatter());
  const auto usage = formatter == nullptr ? std::string() : formatter->make_usage(&app, app.get_name());
  nlohmann::json out{{"name", app.get_name()},  {"description", app.get_description()},
                     {"usage", usage},          {"footer", app.get_footer()},
                     {"version", FSDP_VERSION}, {"options", nlohmann::json::array()}};
  for (auto* option : app.get_options()) {
    if (!option->get_group().empty()) out["options"].push_back(describe(*option));
  }
  return out.dump(1) + "\n";
}

}  // namespace fsdp
