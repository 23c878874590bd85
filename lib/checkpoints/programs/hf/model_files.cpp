#include "lib/checkpoints/programs/hf/model_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/formats/inside_directory.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 100'000'000;

}  // namespace

IndexedFiles read_index(const std::filesystem::path& index, const std::string& whole) {
  const auto json = parse_json_or_discard(read_text_file(index, kMaxIndexBytes), index.string());
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    throw FormatError(index.string() + ": is not an index of the files of a model (no weight_map)");
  const auto directory = index.parent_path().empty() ? std::filesystem::path(".") : index.parent_path();
  IndexedFiles found;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) throw FormatError(index.string() + ": weight_map names something else than a file");
    const auto name = file.get<std::string>();
    found.file_of.emplace(tensor, name);
    found.files.emplace(name, inside_directory(directory, name, index));
  }
  if (found.file_of.empty()) throw FormatError(index.string() + ": names no tensor");
  std::error_code error;
  if (!whole.empty() && std::filesystem::exists(directory / whole, error) && !found.files.contains(whole))
    throw FormatError(fmt::format(
        "{0}: holds two models: {1}, which transformers opens, and the files of {2}, which other programs open: "
        "remove {1} or {2} (fsdp-ckpt-convert also takes the file that is meant, as {3})",
        directory.string(), whole, index.filename().string(), (directory / whole).string()));
  for (const auto& [name, file] : found.files) {
    if (std::filesystem::exists(file, error)) continue;
    throw MissingInput(file.string() + ": is missing, " + index.filename().string() +
                       " names it; fetch the model again (fsdp-download goes on where it stopped)");
  }
  return found;
}

bool is_indexed(const std::string& tensor, const std::map<std::string, std::string>& file_of,
                const std::filesystem::path& file, const std::string& name) {
  const auto found = file_of.find(tensor);
  if (found == file_of.end() || found->second == name) return found != file_of.end();
  // Programs differ in which of the two counts: transformers takes that of the last file.
  throw FormatError(fmt::format("{}: tensor \"{}\" is here and in {}, where the index has it: remove one of them",
                                file.string(), tensor, found->second));
}

std::string remark_of_unindexed(const std::filesystem::path& file, const std::vector<std::string>& tensors) {
  if (tensors.empty()) return "";
  const bool one = tensors.size() == 1;
  return fmt::format("{}: {} that the index does not name {} left out ({}{})", file.string(),
                     one ? "a tensor" : fmt::format("{} tensors", tensors.size()), one ? "is" : "are", tensors.front(),
                     one ? "" : ", ...");
}

void refuse_missing_shards(const std::vector<std::filesystem::path>& files) {
  static const std::regex kShard("(.*)-([0-9]{5})-of-([0-9]{5})(\\.[a-z]+)");
  std::set<std::string> names;
  for (const auto& file : files) names.insert(file.filename().string());
  for (const auto& file : files) {
    const auto name = file.filename().string();
    std::smatch parts;
    if (!std::regex_match(name, parts, kShard)) continue;
    const int count = std::stoi(parts[3]);
    for (int number = 1; number <= count; ++number) {
      const auto wanted = fmt::format("{}-{:05}-of-{}{}", parts[1].str(), number, parts[3].str(), parts[4].str());
      if (names.contains(wanted)) continue;
      throw MissingInput(fmt::format(
          "{}: is missing beside {}, and no index says that the model has no such file; fetch the model again",
          (file.parent_path() / wanted).string(), name));
    }
  }
}

std::vector<std::filesystem::path> files_called(const std::filesystem::path& directory, const std::string& prefix,
                                                const std::string& suffix) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace fsdp
