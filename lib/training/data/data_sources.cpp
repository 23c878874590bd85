#include "lib/training/data/data_sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/training/data/validation_sets.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kMostMixtureBytes = 1u << 20;
constexpr std::string_view kSourcesKey = "\"sources\"";  // the first key of a mixture file

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void check_share(double value, const std::string& what) {
  if (!std::isfinite(value) || value < 0)
    throw RequestError(fmt::format("{} is {}: give a number that is not negative", what, value));
}

std::string without_blanks(const std::string& text) {
  const auto begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

/// Reads NAME=PATH:WEIGHT, whose name and weight may be missing.
DataSource parse_source(const std::string& given, std::string_view option) {
  DataSource source;
  const auto text = exists(given) ? given : without_blanks(given);
  source.path = text;
  if (!exists(source.path)) {
    const auto colon = text.rfind(':');
    const auto weight = colon == std::string::npos ? std::nullopt : number_of(std::string_view(text).substr(colon + 1));
    if (weight) {
      check_share(*weight, fmt::format("the weight of {} in --{}", text.substr(0, colon), option));
      source.weight = weight;
      source.path = text.substr(0, colon);
    }
  }
  if (const auto name = length_of_name(source.path); name > 0 && !exists(source.path)) {
    source.name = source.path.substr(0, name - 1);
    source.path = source.path.substr(name);
  }
  if (source.path.empty()) throw RequestError(fmt::format("--{}: '{}' names no path", option, text));
  if (source.weight && is_mixture_file(source.path))
    throw RequestError(
        fmt::format("--{}: {} is a file of sources, which has their weights: give it alone", option, source.path));
  return source;
}

/// End of the source that begins at `begin`: of the commas and the end of the text the first at which its path exists,
/// or else the first.
std::size_t end_of_source(const std::string& text, std::size_t begin, std::string_view option) {
  auto first = std::string::npos;
  for (auto comma = text.find(',', begin);; comma = text.find(',', comma + 1)) {
    const auto end = std::min(comma, text.size());
    if (first == std::string::npos) first = end;
    const auto part = text.substr(begin, end - begin);
    if (!part.empty() && exists(parse_source(part, option).path)) return end;
    if (end == text.size()) return first;
  }
}

/// Reads the keys of a source in a mixture file.
class SourceReader {
 public:
  SourceReader(const Json& entry, std::string where, fs::path folder)
      : entry_(entry), where_(std::move(where)), folder_(std::move(folder)) {}

  DataSource read() {
    if (!entry_.is_object()) refuse("", "an object with path is expected");
    for (const auto& [key, value] : entry_.items()) take(key, value);
    if (source_.path.empty()) refuse("path", "is missing");
    if (source_.weight && source_.epochs) refuse("epochs", "stands beside weight: give one of them");
    return std::move(source_);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const {
    throw FormatError(fmt::format("{}{}{}: {}", where_, key.empty() ? "" : ".", key, problem));
  }

  std::string text(const std::string& key, const Json& value) const {
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) refuse(key, "a text is expected");
    return value.get<std::string>();
  }

  std::string path(const std::string& key, const Json& value) const {
    auto name = text(key, value);
    const auto below = folder_ / name;
    return exists(below.string()) ? below.string() : name;  // else ORG/NAME of the cache, or missing
  }

  double share(const std::string& key, const Json& value) const {
    if (!value.is_number() || !(value.get<double>() >= 0) || !std::isfinite(value.get<double>()))
      refuse(key, "a number that is not negative is expected");
    return value.get<double>();
  }

  template <class Table>
  auto choice(const std::string& key, const Json& value, const Table& table) const {
    const auto found = find_value(table, text(key, value));
    if (!found) refuse(key, fmt::format("'{}' is none of {}", value.get<std::string>(), choices_of(table)));
    return *found;
  }

  void take(const std::string& key, const Json& value) {
    constexpr std::array kLayouts{NamedValue<TextLayout>{"stream", TextLayout::stream},
                                  NamedValue<TextLayout>{"documents", TextLayout::documents}};
    if (key == "path") {
      source_.path = path(key, value);
    } else if (key == "name") {
      source_.name = text(key, value);
      if (length_of_name(source_.name + "=") != source_.name.size() + 1)
        refuse(key, "letters, digits, '.', '_' and '-' are expected");
    } else if (key == "weight") {
      source_.weight = share(key, value);
    } else if (key == "epochs") {
      source_.epochs = share(key, value);
    } else if (key == "field") {
      source_.field = text(key, value);
    } else if (key == "form") {
      source_.form = choice(key, value, kDataFormNames);
    } else if (key == "template") {
      source_.chat_template = text(key, value);
    } else if (key == "train_on") {
      source_.train_on = choice(key, value, kTrainOnNames);
    } else if (key == "layout") {
      source_.layout = choice(key, value, kLayouts);
    } else if (key == "token_dtype") {
      source_.token_type = choice(key, value, kRawTypeNames);
    } else if (key == "max_rows") {
      if (!value.is_number_integer() || value.get<std::int64_t>() < 0) refuse(key, "a whole number is expected");
      source_.max_rows = value.get<std::int64_t>();
    } else if (key == "validation") {
      source_.validation = path(key, value);
    } else {
      refuse(key,
             "is no key of a source: these are path, weight, epochs, name, field, form, template, train_on, layout, "
             "token_dtype, max_rows and validation");
    }
  }

  const Json& entry_;
  std::string where_;
  fs::path folder_;
  DataSource source_;
};

/// The text of a small JSON file; "" of another file.
std::string small_json_text(const fs::path& file) {
  std::error_code error;
  if (file.extension() != ".json" || !fs::is_regular_file(file, error) ||
      fs::file_size(file, error) > kMostMixtureBytes)
    return "";
  return read_text_file(file, kMostMixtureBytes);
}

std::vector<DataSource> read_mixture_file(const fs::path& file) {
  Json json;
  try {
    json = parse_json(small_json_text(file), file.string());
  } catch (const Json::exception& error) {
    throw FormatError(fmt::format("{}: is no JSON: {}", file.string(), error.what()));
  }
  std::vector<DataSource> sources;
  for (const auto& [key, value] : json.items()) {
    if (key != "sources")
      throw FormatError(fmt::format("{}: {} is no key of a mixture, only sources is", file.string(), key));
  }
  const auto& entries = json["sources"];
  if (!entries.is_array()) throw FormatError(file.string() + ": sources: a list of objects is expected");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    SourceReader reader(entries[i], fmt::format("{}: sources[{}]", file.string(), i), file.parent_path());
    sources.push_back(reader.read());
  }
  if (sources.empty()) throw FormatError(file.string() + ": sources is empty");
  return sources;
}

/// The file's name without its ending, and where that is not enough with the folder's before it.
std::string name_from_path(const std::string& path, bool with_folder) {
  auto whole = fs::path(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  std::string name = whole.stem().string();
  if (with_folder && whole.has_parent_path()) name = whole.parent_path().filename().string() + "-" + name;
  for (auto& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    if (!plain) c = '_';
  }
  return name;
}

void name_sources(std::vector<DataSource>& sources) {
  std::map<std::string, int> uses;
  for (const auto& source : sources) ++uses[source.name.empty() ? name_from_path(source.path, false) : source.name];
  for (auto& source : sources) {
    if (!source.name.empty()) continue;
    const auto name = name_from_path(source.path, false);
    source.name = name_from_path(source.path, uses[name] > 1);
  }
}

void check_sources(const std::vector<DataSource>& sources, const std::string& where) {
  std::set<std::string> names;
  const auto count = [&](auto member) {
    return std::ranges::count_if(sources, [&](const auto& source) { return (source.*member).has_value(); });
  };
  const auto weights = count(&DataSource::weight), epochs = count(&DataSource::epochs);
  if ((weights > 0 && weights < std::ssize(sources)) || (epochs > 0 && epochs < std::ssize(sources))) {
    const auto without = std::ranges::find_if(
        sources, [&](const auto& source) { return weights > 0 ? !source.weight : !source.epochs; });
    throw RequestError(
        fmt::format("{}: {} has no {}, and others have one: give each source one, or none, by which their "
                    "sizes decide",
                    where, without->path, weights > 0 ? "weight" : "number of epochs"));
  }
  for (const auto& source : sources) {
    if (!names.insert(source.name).second)
      throw RequestError(
          fmt::format("{}: two sources are called {}: give them names, as NAME=PATH", where, source.name));
  }
}

}  // namespace

std::string name_of_source(const std::string& path) { return name_from_path(path, false); }

bool is_mixture_file(const fs::path& file) {
  const auto text = small_json_text(file);
  const auto brace = text.find_first_not_of(" \t\r\n");
  if (brace == std::string::npos || text[brace] != '{') return false;
  const auto key = text.find_first_not_of(" \t\r\n", brace + 1);
  return key != std::string::npos && text.compare(key, kSourcesKey.size(), kSourcesKey) == 0;
}

std::vector<DataSource> parse_data_sources(const std::string& given, std::string_view option) {
  std::vector<DataSource> sources;
  if (given.empty()) return sources;
  auto text = given;
  std::ranges::replace(text, '\n', ',');  // between the values of a list
  const bool is_file_of_sources = is_mixture_file(text);
  if (is_file_of_sources) {
    sources = read_mixture_file(text);
  } else if (exists(text)) {
    sources.emplace_back().path = text;
  } else {
    for (std::size_t begin = 0; begin < text.size();) {
      const auto end = end_of_source(text, begin, option);
      sources.push_back(parse_source(text.substr(begin, end - begin), option));
      begin = end + 1;
    }
  }
  if (sources.size() == 1 && !is_file_of_sources) return sources;
  name_sources(sources);
  check_sources(sources, is_file_of_sources ? text : fmt::format("--{}", option));
  return sources;
}

std::string data_sources_text(const std::vector<DataSource>& sources) {
  std::string text;
  for (const auto& source : sources) {
    if (!text.empty()) text += ',';
    if (!source.name.empty()) text += source.name + "=";
    text += source.path;
    if (source.weight) text += fmt::format(":{}", *source.weight);
  }
  return text;
}

}  // namespace fsdp
