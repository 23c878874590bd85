#include "lib/checkpoints/programs/fsdp_finetune/weights_alone.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_json.hpp"
#include "lib/checkpoints/target/output_directory.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRunFile = "run.json";
constexpr const char* kMetadataFile = ".metadata";

bool is_optimizers(std::string_view key) { return key.starts_with("optim."); }

/// Everything but the optimizer's state, with its places in the checkpoint.
std::vector<DcpItem> items_to_keep(const DcpMetadata& metadata) {
  std::vector<DcpItem> items;
  for (const auto& key : metadata.keys) {
    if (is_optimizers(key)) continue;
    DcpItem item{.key = key};
    if (metadata.paths)
      if (const auto path = metadata.paths->find(key); path != metadata.paths->end()) item.path = path->second;
    if (const auto value = metadata.values.find(key); value != metadata.values.end()) {
      item.file = value->second.file;
      item.offset_bytes = value->second.offset_bytes;
      item.length_bytes = value->second.length_bytes;
      items.push_back(std::move(item));
      continue;
    }
    const auto& tensor = metadata.tensors.at(key);
    item.is_tensor = true;
    item.dtype = tensor.dtype;
    item.global_shape = tensor.shape;
    for (const auto& chunk : tensor.chunks) {
      item.offsets = chunk.offsets;
      item.sizes = chunk.sizes;
      item.file = chunk.file;
      item.offset_bytes = chunk.offset_bytes;
      item.length_bytes = chunk.length_bytes;
      items.push_back(item);
    }
  }
  return items;
}

nlohmann::json run_of(const fs::path& checkpoint) { return read_run_json(checkpoint / kRunFile); }

/// Gives the copy the checkpoint's name: at once where the file system can, else by two renames, between which the
/// checkpoint is called .NAME.old, as a save leaves one that it replaces.
/// \return the new name of the original
fs::path swap_names(const fs::path& copy, const fs::path& original) {
  if (exchange_names(copy, original)) return copy;
  const auto old = original.parent_path() / ("." + original.filename().string() + ".old");
  try {
    fs::remove_all(old);
    fs::rename(original, old);
    fs::rename(copy, original);
  } catch (const fs::filesystem_error& error) {
    throw IoError(original.string() + ": cannot be replaced: " + error.code().message());
  }
  return old;
}

}  // namespace

WeightsAlone::WeightsAlone(fs::path checkpoint)
    : checkpoint_(std::move(checkpoint)),
      temporary_(checkpoint_.parent_path() / ("." + checkpoint_.filename().string() + ".weights.tmp")) {
  files_ = run_of(checkpoint_).value("files", nlohmann::json::object());
  for (const auto& entry : fs::directory_iterator(checkpoint_)) {
    const auto name = entry.path().filename().string();
    if (name != kRunFile && !files_.contains(name))
      throw FormatError(
          fmt::format("{}: holds {}, which was not saved with it, so it stays as it is", checkpoint_.string(), name));
  }
  const auto metadata = read_dcp_metadata(checkpoint_);
  items_ = items_to_keep(metadata);
  std::set<std::pair<std::string, std::uint64_t>> kept;
  for (const auto& item : items_) kept.emplace(item.file, item.offset_bytes);
  for (const auto& [key, tensor] : metadata.tensors)
    for (const auto& chunk : tensor.chunks)
      if (kept.emplace(chunk.file, chunk.offset_bytes).second) freed_bytes_ += chunk.length_bytes;
  for (const auto& [key, value] : metadata.values)
    if (kept.emplace(value.file, value.offset_bytes).second) freed_bytes_ += value.length_bytes;
}

WeightsAlone::~WeightsAlone() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

bool WeightsAlone::is_done() const { return freed_bytes_ == 0; }

bool WeightsAlone::write(const std::function<bool()>& stop) {
  std::map<std::string, std::map<std::uint64_t, std::uint64_t>> ranges;  // by file: length by offset
  for (const auto& item : items_) ranges[item.file][item.offset_bytes] = item.length_bytes;
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> places;  // in the copy, by place in the checkpoint
  std::error_code error;
  fs::remove_all(temporary_, error);
  fs::create_directories(temporary_, error);
  if (error) throw IoError(temporary_.string() + ": cannot be made: " + error.message());
  std::vector<std::byte> buffer(4u << 20);
  for (const auto& [name, of_file] : ranges) {
    const auto in = File::open_read(checkpoint_ / name);
    ByteSink out(temporary_ / name);
    for (const auto& [offset, length] : of_file) {
      places[{name, offset}] = out.position();
      for (std::uint64_t done = 0; done < length;) {
        if (stop && stop()) return false;
        const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), length - done));
        in.read_at(offset + done, part);
        out.write(part);
        done += part.size();
      }
    }
    out.finish();
    written_.push_back({.name = name, .size_bytes = out.position(), .crc32 = out.crc32()});
  }
  for (auto& item : items_) item.offset_bytes = places.at({item.file, item.offset_bytes});
  const auto metadata = dcp_metadata_bytes(temporary_, items_);
  replace_file(temporary_ / kMetadataFile, metadata);
  written_.push_back(
      {.name = kMetadataFile, .size_bytes = metadata.size(), .crc32 = crc32(0, std::as_bytes(std::span(metadata)))});
  return true;
}

bool WeightsAlone::replace() {
  std::error_code error;
  if (!fs::exists(checkpoint_ / kRunFile, error)) return false;
  auto run = run_of(checkpoint_);
  if (run.value("files", nlohmann::json()) != files_) return false;
  run["weights_alone"] = true;
  replace_file(temporary_ / kRunFile, run_json_text(std::move(run), written_));
  sync_directory(temporary_);
  const auto old = swap_names(temporary_, checkpoint_);
  sync_directory(checkpoint_.parent_path());
  fs::remove_all(old, error);
  return true;
}

std::vector<std::int64_t> saved_steps(const fs::path& checkpoints) {
  constexpr std::string_view prefix = "step-";
  std::vector<std::int64_t> steps;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const auto name = entry.path().filename().string();
    std::int64_t step = 0;
    std::error_code error;
    if (!name.starts_with(prefix) || entry.is_symlink() || !fs::exists(entry.path() / kRunFile, error)) continue;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
    if (name == fmt::format("step-{:08d}", step)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace fsdp
