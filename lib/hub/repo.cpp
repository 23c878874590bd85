#include "lib/hub/repo.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/hub/content_hash.hpp"

namespace fsdp {
namespace {

bool name_part_ok(const std::string& part) {
  if (part.empty() || part.size() > 96 || part.front() == '.' || part.front() == '-') return false;
  return std::all_of(part.begin(), part.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

std::optional<std::string> optional_text(const nlohmann::json& entry, const char* key) {
  const auto found = entry.find(key);
  return found == entry.end() || found->is_null() ? std::nullopt : std::optional(found->get<std::string>());
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& path) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, path); });
}

/// Characters of a path, with "/" for backslashes; bytes that are no UTF-8 are characters of their own.
std::u32string characters_of(std::string_view text) {
  std::u32string all;
  while (!text.empty()) {
    const auto length = utf8_character_length(text);
    auto code = static_cast<char32_t>(static_cast<unsigned char>(text.front()));
    if (length == 0) code += 0xdc00;
    if (length > 1) code &= 0x7fU >> length;
    for (std::size_t i = 1; i < length; ++i) code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
    all += code == '\\' ? U'/' : code;
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return all;
}

/// Length of the class that `pattern` begins with; 0 where its "[" is a plain character.
std::size_t class_length(std::u32string_view pattern) {
  std::size_t at = 1;
  if (at < pattern.size() && pattern[at] == '!') ++at;
  const auto end = pattern.find(U']', at + 1);
  return pattern.front() != '[' || at >= pattern.size() || end == pattern.npos ? 0 : end + 1;
}

/// \param inside  what stands between the brackets
bool is_in_class(std::u32string_view inside, char32_t character) {
  const bool negated = inside.front() == '!';
  if (negated) inside.remove_prefix(1);
  bool found = false;
  while (!inside.empty()) {
    const bool is_range = inside.size() > 2 && inside[1] == '-';
    found = found || (inside.front() <= character && character <= inside[is_range ? 2 : 0]);
    inside.remove_prefix(is_range ? 3 : 1);
  }
  return found != negated;
}

/// Source: translate() of Python's fnmatch
bool matches_signs(std::u32string_view pattern, std::u32string_view path) {
  std::size_t sign = 0, at = 0, star = pattern.npos, from = 0;
  while (at < path.size()) {
    const auto rest = pattern.substr(sign);
    const auto length = rest.empty() ? 0 : class_length(rest);
    const bool fits = length > 0      ? is_in_class(rest.substr(1, length - 2), path[at])
                      : !rest.empty() ? rest.front() == '?' || rest.front() == path[at]
                                      : false;
    if (!rest.empty() && rest.front() == '*') {
      star = ++sign;  // the sign after the star
      from = at;
    } else if (fits) {
      sign += std::max<std::size_t>(length, 1);
      ++at;
    } else if (star != pattern.npos) {
      sign = star;
      at = ++from;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of(U'*', sign) == pattern.npos;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

const std::vector<std::string> kOtherWeights{"*.bin", "*.bin.index.json", "*.pt", "*.pth",  "*.ckpt",
                                             "*.h5",  "*.msgpack",        "*.ot", "*.onnx", "*.gguf"};

}  // namespace

RepoId RepoId::parse(RepoType type, const std::string& name) {
  const auto slash = name.find('/');
  const auto owner = slash == std::string::npos ? "owner" : name.substr(0, slash);
  if (!name_part_ok(owner) || !name_part_ok(name.substr(slash == std::string::npos ? 0 : slash + 1))) {
    throw UsageError("\"" + name + "\" is not a repository: write OWNER/NAME, such as codellama/CodeLlama-7b-hf");
  }
  return {type, name};
}

std::string RepoId::folder() const {
  auto text = type == RepoType::model ? "models--" + name : "datasets--" + name;
  if (const auto slash = text.find('/'); slash != std::string::npos) text.replace(slash, 1, "--");
  return text;
}

void check_remote_file(const RemoteFile& file) {
  const std::filesystem::path path(file.path);
  const bool climbs =
      std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".." || part == "."; });
  const bool odd = file.path.find_first_of("\n\t") != std::string::npos || printable(file.path) != file.path;
  if (file.path.empty() || path.is_absolute() || climbs || odd || !path.has_filename()) {
    throw FormatError("the repository lists a file that would land outside its folder, or has no proper name: \"" +
                      file.path + "\"");
  }
  hash_kind(file.hash());
  if (file.size_bytes > kLargestFileBytes) {
    throw FormatError("the repository lists " + file.path + " with " + std::to_string(file.size_bytes) +
                      " bytes, which no file has");
  }
}

std::uint64_t size_from_json(const nlohmann::json& size) {
  // get() would convert -1 to the largest unsigned number.
  if (!size.is_number_unsigned())
    throw FormatError("a listing with the size " + json_text(size) + ", expected a number of bytes");
  return size.get<std::uint64_t>();
}

std::string tree_to_json(const std::vector<RemoteFile>& files) {
  nlohmann::json entries = nlohmann::json::object();
  for (const auto& file : files) {
    auto& entry = entries[file.path];
    entry = {{"size", file.size_bytes}, {"blob_id", file.blob_id}};
    if (file.lfs_sha256) {
      entry["lfs_sha256"] = *file.lfs_sha256;
      entry["lfs_size"] = file.size_bytes;
    }
    if (file.xet_hash) entry["xet_hash"] = *file.xet_hash;
  }
  return json_text(nlohmann::json{{"format_version", 1}, {"files", entries}}, 1);
}

std::optional<std::vector<RemoteFile>> tree_from_json(const std::string& text) {
  try {
    const auto tree = parse_json(text, "a list of files");
    if (tree.at("format_version") != 1) return std::nullopt;
    std::vector<RemoteFile> files;
    for (const auto& [path, entry] : tree.at("files").items()) {
      files.push_back({path, size_from_json(entry.at("size")), entry.at("blob_id").get<std::string>(),
                       optional_text(entry, "lfs_sha256"), optional_text(entry, "xet_hash")});
      check_remote_file(files.back());
    }
    return files;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

std::string Selection::words() const {
  std::string text = include.empty() ? "all files" : "include " + joined(include);
  if (!exclude.empty()) text += "; exclude " + joined(exclude);
  if (max_files > 0) text += "; at most " + std::to_string(max_files) + " files";
  if (!prefer_safetensors) text += "; weights in all formats";
  return text;
}

bool matches(const std::string& pattern, const std::string& path) {
  auto signs = characters_of(pattern);
  if (!signs.empty() && signs.back() == '/') signs += U'*';
  return matches_signs(signs, characters_of(path));
}

Selected select_files(const std::vector<RemoteFile>& all, const Selection& selection) {
  Selected selected;
  for (const auto& file : all) {
    const bool in = selection.include.empty() || matches_any(selection.include, file.path);
    if (in && !matches_any(selection.exclude, file.path)) selected.files.push_back(file);
  }
  const bool has_safetensors = std::any_of(selected.files.begin(), selected.files.end(),
                                           [](const auto& file) { return matches("*.safetensors", file.path); });
  // Explicit patterns select all files that they match.
  if (selection.prefer_safetensors && selection.include.empty() && has_safetensors) {
    const auto other = std::stable_partition(selected.files.begin(), selected.files.end(),
                                             [](const auto& file) { return !matches_any(kOtherWeights, file.path); });
    selected.left_out.assign(other, selected.files.end());
    selected.files.erase(other, selected.files.end());
  }
  if (selection.max_files > 0 && selected.files.size() > static_cast<std::size_t>(selection.max_files)) {
    selected.files.resize(static_cast<std::size_t>(selection.max_files));
  }
  if (selected.files.empty()) {
    throw UsageError("none of the repository's " + std::to_string(all.size()) + " files is selected (" +
                     selection.words() + ")");
  }
  return selected;
}

Preset preset_of(const std::string& repo_name) {
  if (repo_name == "laion/strategic_game_chess") return {RepoType::dataset, {"*.parquet"}};
  if (matches("codellama/CodeLlama-*-hf", repo_name)) {
    return {RepoType::model,
            {"*.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json", "tokenizer.json",
             "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"}};
  }
  return {};
}

}  // namespace fsdp
