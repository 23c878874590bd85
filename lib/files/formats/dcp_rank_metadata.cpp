#include "lib/files/formats/dcp_rank_metadata.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "lib/base/error.hpp"

namespace fsdp::detail {
namespace {

std::optional<std::uint32_t> rank_of(const std::string& name) {
  constexpr std::string_view prefix = "__", suffix = ".metadata";
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) return {};
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size() - suffix.size();
  std::uint32_t rank = 0;
  const auto [stop, error] = std::from_chars(begin, end, rank);
  return error == std::errc() && stop == end ? std::optional(rank) : std::nullopt;
}

void merge_tensor(DcpTensor& all, DcpTensor rank, const std::string& key, const std::string& file) {
  if (all.dtype != rank.dtype || all.shape != rank.shape) {
    throw FormatError(file + ": tensor \"" + key + "\" has another shape or type than in the files of lower ranks");
  }
  const std::size_t known = all.chunks.size();
  for (auto& chunk : rank.chunks) {
    const auto same = std::find_if(all.chunks.begin(), all.chunks.begin() + static_cast<std::ptrdiff_t>(known),
                                   [&](const auto& other) { return other.offsets == chunk.offsets; });
    if (same == all.chunks.begin() + static_cast<std::ptrdiff_t>(known)) {
      all.chunks.push_back(std::move(chunk));
    } else if (same->sizes != chunk.sizes) {
      throw FormatError(file + ": tensor \"" + key + "\" has a chunk of another size than in the files of lower ranks");
    }
  }
}

}  // namespace

std::vector<std::filesystem::path> rank_metadata_files(const std::filesystem::path& directory) {
  std::vector<std::pair<std::uint32_t, std::filesystem::path>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto rank = rank_of(entry->path().filename().string())) found.emplace_back(*rank, entry->path());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::filesystem::path> files;
  for (const auto& [rank, path] : found) {
    if (rank != files.size()) {
      throw FormatError(directory.string() + ": has " + path.filename().string() + " but no __" +
                        std::to_string(files.size()) +
                        ".metadata; the checkpoint is not complete: copy the files of every rank");
    }
    files.push_back(path);
  }
  return files;
}

void merge_rank_metadata(DcpMetadata& all, DcpMetadata rank, const std::string& file) {
  for (auto& key : rank.keys) {
    const auto tensor = rank.tensors.find(key);
    const bool is_tensor = tensor != rank.tensors.end();
    if ((is_tensor && all.values.contains(key)) || (!is_tensor && all.tensors.contains(key))) {
      throw FormatError(file + ": \"" + key + "\" is a tensor in one rank's file and a value in another's");
    }
    if (is_tensor && all.tensors.contains(key)) {
      merge_tensor(all.tensors.at(key), std::move(tensor->second), key, file);
      continue;
    }
    if (!is_tensor && all.values.contains(key)) continue;
    if (is_tensor) {
      all.tensors.emplace(key, std::move(tensor->second));
    } else {
      all.values.emplace(key, rank.values.at(key));
    }
    all.keys.push_back(std::move(key));
  }
  if (rank.paths && !all.paths) all.paths.emplace();
  if (rank.paths) all.paths->merge(*rank.paths);
  if (all.producer.empty()) all.producer = rank.producer;
}

}  // namespace fsdp::detail
