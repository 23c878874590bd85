#include "lib/checkpoints/programs/torch_checkpointing/torch_checkpointing_source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/source/distributed_tensor.hpp"
#include "lib/checkpoints/source/pickle_node.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/rank_files_source.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/safetensors.hpp"

namespace fsdp {
namespace {

constexpr const char* kIndexOfItems = "metadata.pkl";
constexpr std::uint64_t kMostIndex_bytes = 1u << 30, kMostValue_bytes = 64u << 20;
constexpr std::size_t kMostItemRanks = 1u << 20;

/// The files of an item by rank.
using ItemFiles = std::map<std::size_t, std::filesystem::path>;

/// Items by name and extension.
std::map<std::pair<std::string, std::string>, ItemFiles> list_items(const std::filesystem::path& directory) {
  static const std::regex kNames("(.+)_([0-9]{1,6})\\.(pt|safetensors|json)");
  std::map<std::pair<std::string, std::string>, ItemFiles> items;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto name = entry->path().filename().string();
    std::smatch match;
    if (std::regex_match(name, match, kNames))
      items[{match[1], match[3]}].emplace(static_cast<std::size_t>(std::stoul(match[2])), entry->path());
  }
  return items;
}

bool is_class_of_pieces(const PickleValue& value) {
  const auto* type = value.global();
  return type != nullptr && type->module.starts_with("torch.distributed.") &&
         (type->name == "DTensor" || type->name == "ShardedTensor");
}

/// `["a"]["b"]` as "a.b"; any other text as it is.
std::string name_of_nested_path(const std::string& text) {
  std::string name;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '[') return text;
    const std::size_t quote = text.compare(at, 2, "[\"") == 0 ? 1 : 0;
    const auto begin = at + 1 + quote, end = text.find(quote != 0 ? "\"]" : "]", begin);
    if (end == std::string::npos) return text;
    name += (name.empty() ? "" : ".") + text.substr(begin, end - begin);
    at = end + 1 + quote;
  }
  return name;
}

class TorchCheckpointingSource : public RankFilesSource {
 public:
  explicit TorchCheckpointingSource(const std::filesystem::path& directory) : folder_(directory.string()) {
    info_.format = "torch-checkpointing";
    info_.producer = "PyTorch (torch-checkpointing)";
    info_.directory = directory;
    auto items = list_items(directory);
    read_index(directory / kIndexOfItems);
    if (!index_) {
      for (const auto& [item, files] : items)
        if (item.second != "json") world_ = std::max(world_, files.rbegin()->first + 1);
    }
    info_.world_size = static_cast<int>(world_);
    std::string last;
    for (auto& [item, files] : items) {
      const auto& [name, extension] = item;
      if (!are_all_there(name, extension, files)) continue;
      if (name == last) fail("has files of the item \"" + name + "\" in two formats: those of two saves");
      last = name;
      for (const auto& [rank, path] : files) info_.files.push_back(path);
      if (extension == "pt") read_item(name, files);
      if (extension == "safetensors") read_safetensors_item(name, files);
      if (extension == "json") read_json_item(name, files.at(0));
    }
    check_items(items);
    for (const auto& path : order_) add_whole(path, found_.at(path));
    if (!differing_.empty())
      info_.remarks.push_back(fmt::format("{}: differ between ranks, so those of rank 0 are taken: {}", folder_,
                                          fmt::join(differing_, ", ")));
    check_names(folder_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw FormatError(folder_ + ": " + what); }

  /// Reads metadata.pkl, which has plain data only.
  void read_index(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return;
    PickleSource pickle;
    pickle.text = std::make_shared<const std::string>(read_text_file(path, kMostIndex_bytes));
    pickle.file = path.string();
    index_ = std::make_shared<const PickleDocument>(read_pickle(pickle));
    for (const auto& value : index_->values)
      if (value.global() != nullptr)
        throw FormatError(path.string(), value.offset_bytes,
                          "has " + describe(value) + ", only plain data belong here");
    const PickleNode root{index_->root, path.string(), ""};
    const auto ranks = root.at("world_size");
    world_ = ranks.count();
    if (world_ == 0 || world_ > kMostItemRanks) ranks.fail("is no number of ranks");
    if (const auto version = root.find("version"); version && version->text() != "2.0")
      info_.remarks.push_back(
          fmt::format("{}: is of version {}, which is read as 2.0", path.string(), version->text().substr(0, 100)));
    items_in_index_ = root.at("metadata");
  }

  /// Checks that every item of metadata.pkl has files. \throws FormatError
  void check_items(const std::map<std::pair<std::string, std::string>, ItemFiles>& items) const {
    if (!items_in_index_) return;
    for (const auto& [name, node] : items_in_index_->entries()) {
      const auto next = items.lower_bound({name, ""});
      if (next == items.end() || next->first.first != name) fail("the files of the item \"" + name + "\" are missing");
    }
  }

  /// False for JSON files that only look like those of an item. \throws FormatError naming missing ranks
  bool are_all_there(const std::string& name, const std::string& extension, ItemFiles& files) {
    constexpr std::size_t most = 10;
    std::vector<std::size_t> missing;
    for (std::size_t rank = 0; rank < world_ && missing.size() < most; ++rank)
      if (!files.contains(rank)) missing.push_back(rank);
    if (!missing.empty() && extension == "json") return false;
    if (!missing.empty())
      fail(
          fmt::format("{} ranks wrote this checkpoint, and the files of the item \"{}\" of rank {} are missing: copy "
                      "the whole folder (each node may have kept its own ranks' files)",
                      world_, name, fmt::join(missing, ", ")));
    if (std::erase_if(files, [&](const auto& file) { return file.first >= world_; }) > 0)
      info_.remarks.push_back(
          fmt::format("{}: files of the item \"{}\" of rank {} and more are left from another save "
                      "and are not read",
                      folder_, name, world_));
    return true;
  }

  RankTensor& found(const StatePath& path) {
    const auto [known, is_new] = found_.try_emplace(path);
    if (is_new) {
      count_name(joined(path));
      order_.push_back(path);
    }
    return known->second;
  }

  // Items as files of torch.save.

  void read_item(const std::string& name, const ItemFiles& files) {
    for (const auto& [rank, path] : files) {
      const auto file = open_torch_file(path);
      read_node(*file, rank, {file->document()->root, path.string(), name}, {name});
    }
  }

  void read_node(const TorchFile& file, std::size_t rank, const PickleNode& node, const StatePath& path) {
    const auto below = [&](StatePath::value_type element, const PickleNode& item) {
      auto inner = path;
      inner.push_back(std::move(element));
      read_node(file, rank, item, inner);
    };
    const auto* mapping = pickled_mapping(*node.value);
    if (is_tensor_like(*node.value)) {
      take(file, rank, node, found(path), joined(path), true);
    } else if (node.is_open_dict()) {
      for (const auto& [key, item] : node.entries()) below(key, item);
    } else if ((node.value->list() != nullptr || node.value->tuple() != nullptr) && holds_tensor(*node.value)) {
      std::int64_t index = 0;
      for (const auto& item : node.items()) below(index++, item);
    } else if (rank == 0 && (mapping == nullptr || !mapping->items.empty())) {
      add_plain_value(path, file.document(), node);
    }
  }

  void read_json_item(const std::string& name, const std::filesystem::path& file) {
    const auto json = parse_json_or_discard(read_text_file(file, kMostValue_bytes), file.string());
    if (json.is_discarded()) throw FormatError(file.string() + ": is no JSON");
    add_value({name}, json);
  }

  // Items as safetensors, whose files do not say where their pieces lie.

  /// The tensors of an item that metadata.pkl describes, by name.
  std::map<std::string, DescribedTensor> described(const std::string& item) const {
    std::map<std::string, DescribedTensor> tensors;
    const auto known = items_in_index_ ? items_in_index_->find(item) : std::nullopt;
    const auto paths = known ? known->find("nested_path_to_metadata") : std::nullopt;
    if (!paths || paths->value->is_none()) return tensors;
    for (const auto& [path, entries] : paths->entries()) {
      auto& tensor = tensors[name_of_nested_path(path)];
      for (const auto& entry : entries.items()) {
        const auto sharding = entry.at("sharding_metadata");
        if (const auto type = sharding.at("type"); type.text() != "DTensorShardingMetadata")
          type.fail("is " + type.text().substr(0, 100) + ", which is not read: DTensorShardingMetadata is");
        auto part = described_tensor(sharding.at("data"));
        if (tensor.blocks.empty()) {
          tensor = std::move(part);
          continue;
        }
        if (tensor.dtype != part.dtype || tensor.shape != part.shape) sharding.fail("contradicts an entry before it");
        tensor.blocks.merge(part.blocks);
      }
    }
    return tensors;
  }

  void read_safetensors_item(const std::string& item, const ItemFiles& files) {
    if (!index_ && world_ > 1)
      fail(
          fmt::format("{} and those of {} other ranks hold pieces of tensors without metadata: only metadata.pkl, "
                      "which is missing, says where they lie (torch-checkpointing writes it for items with a "
                      "resharder)",
                      files.at(0).filename().string(), world_ - 1));
    const auto known = described(item);
    std::set<std::string> seen;
    for (const auto& [rank, path] : files) {
      const SafetensorsReader reader(path);
      std::uint32_t number = 0;
      for (const auto& stored : reader.tensors()) {
        const auto& name = stored.first;
        const auto& entry = stored.second;
        const auto own = number++;
        if (entry.other)
          throw FormatError(path.string() + ": tensor \"" + name + "\" is of type " + entry.other->name +
                            ", which is not put together here");
        OwnPlace place{add_storage(path, own,
                                   [&] {
                                     return TorchStorage{.number = own,
                                                         .begin_bytes = entry.begin,
                                                         .size_bytes = entry.end - entry.begin,
                                                         .crc32 = std::nullopt,
                                                         .entry = "tensor \"" + name + "\""};
                                   }),
                       contiguous_view(entry.dtype, entry.shape)};
        const auto whole = known.find(name);
        seen.insert(name);
        auto& tensor = found({item, name});
        const auto what = path.string() + ": tensor \"" + name + "\"";
        if (whole == known.end()) {
          take_copy(tensor, std::move(place), what);
        } else {
          take_piece(tensor, whole->second, rank, std::move(place), what);
        }
      }
    }
    for (const auto& [name, tensor] : known)
      if (!seen.contains(name)) fail("no file of the item \"" + item + "\" has the tensor \"" + name + "\"");
  }

  static void take_piece(RankTensor& tensor, const DescribedTensor& whole, std::size_t rank, OwnPlace place,
                         const std::string& what) {
    tensor.is_seen = true;
    tensor.dtype = whole.dtype;
    tensor.shape = whole.shape;
    const auto block = whole.blocks.find(rank);
    if (block == whole.blocks.end())
      throw FormatError(what + " is of rank " + std::to_string(rank) + ", of which metadata.pkl knows no piece");
    const auto& sizes = block->second.sizes;
    const bool both_empty = num_elements(sizes) == 0 && num_elements(place.view.sizes) == 0;
    if (place.view.dtype != whole.dtype || (place.view.sizes != sizes && !both_empty))
      throw FormatError(fmt::format("{} is a {} tensor of shape [{}], metadata.pkl says {} of shape [{}]", what,
                                    torch_name(place.view.dtype), fmt::join(place.view.sizes, ", "),
                                    torch_name(whole.dtype), fmt::join(sizes, ", ")));
    take_block(tensor, block->second, std::move(place));
  }

  /// Takes a tensor that metadata.pkl does not describe: every rank must have the same.
  void take_copy(RankTensor& tensor, OwnPlace place, const std::string& what) const {
    if (!std::exchange(tensor.is_seen, true)) {
      tensor.is_plain = true;
      tensor.dtype = place.view.dtype;
      tensor.shape = place.view.sizes;
      tensor.places.push_back(std::move(place));
      return;
    }
    if (tensor.dtype != place.view.dtype || tensor.shape != place.view.sizes ||
        !same_bytes(tensor.places.front(), place))
      throw FormatError(what +
                        " differs from that of rank 0, and metadata.pkl does not say where it lies: a piece "
                        "without metadata");
  }

  std::string folder_;
  std::size_t world_ = 1;
  std::shared_ptr<const PickleDocument> index_;  // null: there is no metadata.pkl
  std::optional<PickleNode> items_in_index_;
  std::map<StatePath, RankTensor> found_;
  std::vector<StatePath> order_;
};

}  // namespace

bool has_torch_checkpointing_metadata(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::is_regular_file(directory / kIndexOfItems, error) && !list_items(directory).empty();
}

bool holds_torch_checkpointing_items(const std::filesystem::path& directory) {
  constexpr std::size_t most = 16;  // files to open
  std::size_t opened = 0;
  for (const auto& [item, files] : list_items(directory)) {
    if (item.second != "pt" || !files.contains(0) || opened++ >= most) continue;
    try {
      const auto document = open_torch_file(files.at(0))->document();
      if (std::ranges::any_of(document->values, is_class_of_pieces)) return true;
    } catch (const Error&) {
      continue;  // of another program, or damaged
    }
  }
  return false;
}

void refuse_pieces_alone(const std::filesystem::path& file) {
  const auto directory = file.parent_path().empty() ? std::filesystem::path(".") : file.parent_path();
  if (file.extension() != ".safetensors" || !has_torch_checkpointing_metadata(directory)) return;
  for (const auto& [item, files] : list_items(directory))
    for (const auto& [rank, path] : files)
      if (path.filename() == file.filename())
        throw FormatError(file.string() + ": is one rank's part of the item \"" + item.first +
                          "\": give the folder, whose metadata.pkl says where the pieces lie");
}

std::unique_ptr<Source> open_torch_checkpointing(const std::filesystem::path& directory) {
  return std::make_unique<TorchCheckpointingSource>(directory);
}

}  // namespace fsdp
