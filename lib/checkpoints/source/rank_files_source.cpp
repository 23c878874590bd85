#include "lib/checkpoints/source/rank_files_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/checkpoints/source/distributed_tensor.hpp"
#include "lib/checkpoints/source/plain_value.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp {
namespace {

/// The number of segments that have some of the elements [first, first + count).
std::int64_t segments_in(const std::vector<Segment>& segments, std::uint64_t first, std::uint64_t count) {
  std::int64_t number = 0;
  std::uint64_t begin = 0;
  for (const auto& segment : segments) {
    if (std::max(first, begin) < std::min(first + count, begin + segment.count)) ++number;
    begin += segment.count;
  }
  return number;
}

constexpr std::uint64_t kMostCompared = 64u << 10;

[[noreturn]] void fail_of_two_saves(const PickleNode& node, std::size_t rank) {
  node.fail("of rank " + std::to_string(rank) +
            " is of another type or shape than that of other ranks: files of two saves lie in one folder");
}

using Order = std::vector<std::vector<std::size_t>>;

std::optional<Order> order_by_shapes(const std::vector<NumberedGroup>& groups, const std::vector<Shape>& shapes) {
  Order order(groups.size());
  std::size_t expected = 0;
  for (const auto& group : groups) expected += group.shapes.size();
  if (expected != shapes.size()) return std::nullopt;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    std::optional<std::size_t> fits;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      const auto next = order[group].size();
      if (next == groups[group].shapes.size() || groups[group].shapes[next] != shapes[i]) continue;
      if (fits) return std::nullopt;
      fits = group;
    }
    if (!fits) return std::nullopt;
    order[*fits].push_back(i);
  }
  return order;
}

}  // namespace

std::string joined(const StatePath& path) {
  std::string text;
  for (const auto& element : path) {
    if (&element != &path.front()) text += '.';
    const auto* key = std::get_if<std::string>(&element);
    text += key != nullptr ? *key : std::to_string(std::get<std::int64_t>(element));
  }
  return text;
}

LoadedValue RankFilesSource::value(std::size_t value) const {
  const LoadedValue& loaded = loaded_.at(value);
  check_plain_value(*loaded.value, values_[value].name, info_.directory.string());
  return loaded;
}

std::uint32_t RankFilesSource::add_storage(const TorchFile& file, const TensorView& view) {
  const auto own = file.storage_number(view);
  return add_storage(file.file().path(), own, [&] { return file.storage(own); });
}

std::uint32_t RankFilesSource::add_storage(const std::filesystem::path& path, std::uint32_t own,
                                           const std::function<TorchStorage()>& describe) {
  const auto [known, is_new] = number_of_file_.emplace(path, static_cast<std::uint32_t>(data_files_.paths().size()));
  if (is_new) data_files_.add(path);
  const auto [number, is_first] =
      number_of_.emplace(std::pair(known->second, own), static_cast<std::uint32_t>(storages_.size()));
  if (!is_first) return number->second;
  const TorchStorage found = describe();
  storages_.push_back({.file = known->second,
                       .begin_bytes = found.begin_bytes,
                       .size_bytes = found.size_bytes,
                       .crc32 = found.crc32,
                       .entry = found.entry});
  return number->second;
}

std::optional<std::uint32_t> RankFilesSource::read_view(std::uint32_t storage, const TensorView& view,
                                                        std::uint64_t first, std::uint64_t count,
                                                        std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const Storage& place = storages_[storage];
  TensorInFile stored;
  stored.storage_begin_bytes = place.begin_bytes;
  stored.view = view;
  stored.storage = storage;
  stored.crc32 = place.crc32;
  return read_stored(*data_files_.open(place.file), stored, first, count, out, sums);
}

std::optional<std::uint32_t> RankFilesSource::read_part(const Flat& flat, std::size_t part, std::uint64_t first,
                                                        std::uint64_t count, std::span<std::byte> out,
                                                        std::vector<ReadSum>* sums) const {
  const auto item = dtype_size_bytes(flat.dtype);
  std::optional<std::uint32_t> crc = 0;
  std::uint64_t begin = 0, done = 0;
  for (const auto& segment : flat.parts[part]) {
    const auto from = std::max(first, begin), to = std::min(first + count, begin + segment.count);
    if (from < to) {
      TensorView view = contiguous_view(flat.dtype, {static_cast<std::int64_t>(segment.count)});
      view.storage_offset = segment.first;
      view.storage_bytes = storages_[segment.storage].size_bytes;
      const auto to_bytes = out.subspan((from - first) * item, (to - from) * item);
      const auto piece = read_view(segment.storage, view, from - begin, to - from, to_bytes, sums);
      crc = crc && piece ? std::optional(crc32_combine(*crc, *piece, to_bytes.size())) : std::nullopt;
      done += to - from;
      if (sums != nullptr && to == begin + segment.count && segment.rest > 0) {
        const Flat rest{flat.dtype, {{{segment.storage, segment.first + segment.count, segment.rest, 0}}}};
        read_padding(rest, 0, 0, segment.rest, sums);
      }
    }
    begin += segment.count;
  }
  if (done != count) throw std::logic_error("the parts of a tensor do not make up its elements");
  return crc;
}

/// Reads and drops elements, so that checksums also cover what belongs to no tensor.
void RankFilesSource::read_padding(const Flat& flat, std::size_t part, std::uint64_t first, std::uint64_t count,
                                   std::vector<ReadSum>* sums) const {
  constexpr std::uint64_t most = 16u << 10;
  std::vector<std::byte> dropped(std::min(count, most) * dtype_size_bytes(flat.dtype));
  for (std::uint64_t done = 0; done < count; done += most) {
    const auto piece = std::min(most, count - done);
    read_part(flat, part, first + done, piece, std::span(dropped).first(piece * dtype_size_bytes(flat.dtype)), sums);
  }
}

std::optional<std::uint32_t> RankFilesSource::read_flat(ChunkNumber chunk, const PlaceInFlat& place,
                                                        std::uint64_t first, std::uint64_t count,
                                                        std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const Flat& flat = flats_[place.flat];
  const auto item = dtype_size_bytes(flat.dtype);
  std::optional<std::uint32_t> crc = 0;
  for (std::uint64_t done = 0; done < count;) {
    const auto part = (first + done) / place.each, inside = (first + done) % place.each;
    const auto length = std::min(count - done, place.each - inside);
    const auto to = out.subspan(done * item, length * item);
    const auto piece = read_part(flat, part, place.first + inside, length, to, sums);
    crc = crc && piece ? std::optional(crc32_combine(*crc, *piece, to.size())) : std::nullopt;
    done += length;
  }
  const auto total = element_count(block(chunk).sizes);
  if (sums == nullptr || first + count != total) return crc;
  for (std::size_t part = (total - 1) / place.each; part < flat.parts.size(); ++part) {
    const auto used = std::min(place.each, total - std::min<std::uint64_t>(total, part * place.each));
    const auto unused = place.each - used + (part + 1 == flat.parts.size() ? place.gap : 0);
    if (unused > 0) read_padding(flat, part, place.first + used, unused, sums);
  }
  return crc;
}

// ----------------------------------------------------------------------------------------------------------- opening

void RankFilesSource::add(StatePath path, DType dtype, Shape shape, Place place) {
  SourceTensor tensor{.name = joined(path), .path = std::move(path), .dtype = dtype, .shape = std::move(shape)};
  tensor.stored_bytes = tensor.size_bytes();
  if (const auto* in_flat = std::get_if<PlaceInFlat>(&place)) {
    const auto& parts = flats_[in_flat->flat].parts;
    const auto count = element_count(tensor.shape);
    if (parts.size() > 1 && count > 0)
      tensor.num_shards = static_cast<std::int64_t>((count + in_flat->each - 1) / in_flat->each);
    if (parts.size() == 1 && count > 0) tensor.num_shards = segments_in(parts[0], in_flat->first, count);
  }
  count_name(tensor.name);
  places_.push_back(std::move(place));
  const Shape sizes = tensor.shape;
  add_tensor(std::move(tensor), {{Shape(sizes.size(), 0), sizes}}, info_.directory.string());
}

void RankFilesSource::add(StatePath path, DType dtype, Shape shape, std::vector<Block> blocks,
                          std::vector<OwnPlace> places) {
  SourceTensor tensor{.name = joined(path), .path = std::move(path), .dtype = dtype, .shape = std::move(shape)};
  tensor.stored_bytes = tensor.size_bytes();
  tensor.num_shards = std::ssize(blocks);
  add_tensor(std::move(tensor), std::move(blocks), info_.directory.string());
  for (auto& place : places) places_.emplace_back(std::move(place));
}

std::optional<std::uint32_t> RankFilesSource::read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                                         std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  if (const auto* own = std::get_if<OwnPlace>(&places_[chunk]))
    return read_view(own->storage, own->view, first, count, out, sums);
  return read_flat(chunk, std::get<PlaceInFlat>(places_[chunk]), first, count, out, sums);
}

bool RankFilesSource::chunk_prefers_whole(ChunkNumber chunk) const {
  const auto* own = std::get_if<OwnPlace>(&places_[chunk]);
  return own != nullptr && !own->view.is_contiguous();
}

Segment RankFilesSource::segment_of(const TorchFile& file, const PickleNode& node, DType& dtype, bool is_first) {
  const auto view = tensor_view(*node.value, node.file);
  if (!view || view->sizes.size() != 1 || !view->is_contiguous())
    node.fail("should be a flat tensor and is " + describe(*node.value));
  if (is_first) dtype = view->dtype;
  if (view->dtype != dtype)
    node.fail(fmt::format("is {}, that of other ranks or groups is {}", torch_name(view->dtype), torch_name(dtype)));
  Segment segment;
  segment.storage = add_storage(file, *view);
  segment.first = view->storage_offset;
  segment.count = static_cast<std::uint64_t>(view->sizes[0]);
  const auto stored = view->storage_bytes / dtype_size_bytes(dtype);
  segment.rest = segment.count > 0 ? stored - segment.first - segment.count : 0;
  return segment;
}

void RankFilesSource::take(const TorchFile& file, std::size_t rank, const PickleNode& node, RankTensor& tensor,
                           const std::string& name, bool in_model) {
  const bool is_first = !std::exchange(tensor.is_seen, true);
  if (!is_distributed_tensor(*node.value)) {
    const auto view = tensor_view(*node.value, node.file);
    if (!view) node.fail("should be a tensor and is " + describe(*node.value));
    take_plain(file, rank, *view, node, tensor, name, in_model, is_first);
    return;
  }
  auto part = distributed_tensor(node, rank, [&](const TensorView& view) { return integers(file, view); });
  if (is_first) {
    tensor.dtype = part.dtype;
    tensor.shape = part.shape;
  }
  if (tensor.is_plain || tensor.dtype != part.dtype || tensor.shape != part.shape) fail_of_two_saves(node, rank);
  for (std::size_t i = 0; i < part.blocks.size(); ++i)
    if (num_elements(part.blocks[i].sizes) > 0 && !tensor.offsets.contains(part.blocks[i].offsets))
      take_block(tensor, std::move(part.blocks[i]), own_place(file, part.views[i]));
}

void RankFilesSource::take_block(RankTensor& tensor, Block block, OwnPlace place) {
  if (num_elements(block.sizes) == 0 || !tensor.offsets.insert(block.offsets).second) return;
  place.view.storage_key.clear();
  tensor.places.push_back(std::move(place));
  tensor.blocks.push_back(std::move(block));
}

void RankFilesSource::take_plain(const TorchFile& file, std::size_t rank, const TensorView& view,
                                 const PickleNode& node, RankTensor& tensor, const std::string& name, bool in_model,
                                 bool is_first) {
  if (is_first) {
    tensor.is_plain = true;
    tensor.dtype = view.dtype;
    tensor.shape = view.sizes;
  }
  const bool is_flat = !in_model && view.sizes.size() == 1;
  if (!tensor.is_plain || tensor.dtype != view.dtype || (!is_flat && tensor.shape != view.sizes))
    fail_of_two_saves(node, rank);
  if (is_first || is_flat) {
    tensor.places.push_back(own_place(file, view));
    return;
  }
  if (view.length_bytes() > kMostCompared || same_bytes(tensor.places.front(), own_place(file, view))) return;
  if (!in_model)
    node.fail("of rank " + std::to_string(rank) + " differs from that of rank 0: files of two saves lie in one folder");
  if (std::ranges::find(differing_, name) == differing_.end()) differing_.push_back(name);
}

bool RankFilesSource::same_bytes(const OwnPlace& a, const OwnPlace& b) const {
  const auto item = dtype_size_bytes(a.view.dtype);
  const auto count = std::min(element_count(a.view.sizes), kMostCompared / item);
  if (count == 0) return true;
  std::vector<std::byte> first(count * item), second(count * item);
  read_view(a.storage, a.view, 0, count, first, nullptr);
  read_view(b.storage, b.view, 0, count, second, nullptr);
  return first == second;
}

/// \pre `view` is small
std::vector<std::int64_t> RankFilesSource::integers(const TorchFile& file, const TensorView& view) {
  const auto place = own_place(file, view);
  const auto count = element_count(view.sizes);
  std::vector<std::byte> bytes(view.length_bytes());
  if (count > 0) read_view(place.storage, view, 0, count, bytes, nullptr);
  std::vector<std::int64_t> numbers(count);
  const auto item = dtype_size_bytes(view.dtype);
  if (view.dtype != DType::i32 && view.dtype != DType::i64)
    throw FormatError(file.file().path().string() + ": the ranks of a mesh are no integers");
  for (std::size_t i = 0; i < count; ++i) {
    if (view.dtype == DType::i64) std::memcpy(&numbers[i], bytes.data() + i * item, item);
    std::int32_t small = 0;
    if (view.dtype == DType::i32) std::memcpy(&small, bytes.data() + i * item, item);
    if (view.dtype == DType::i32) numbers[i] = small;
  }
  return numbers;
}

void RankFilesSource::add_whole(StatePath path, const RankTensor& tensor) {
  if (tensor.is_plain) {
    add(std::move(path), tensor.dtype, tensor.shape, tensor.places.front());
  } else {
    add(std::move(path), tensor.dtype, tensor.shape, tensor.blocks, tensor.places);
  }
}

std::optional<ChunkedSource::RecordedSum> RankFilesSource::recorded_sum(std::uint32_t storage) const {
  const Storage& place = storages_[storage];
  if (!place.crc32) return std::nullopt;
  return RecordedSum{.size_bytes = place.size_bytes,
                     .crc32 = *place.crc32,
                     .file = data_files_.paths()[place.file].string(),
                     .entry = place.entry,
                     .begin_bytes = place.begin_bytes};
}

void RankFilesSource::count_name(const std::string& name) {
  constexpr std::uint64_t most = 256ull << 20;
  name_bytes_ += name.size() + sizeof(SourceValue);
  if (name_bytes_ > most)
    throw FormatError(info_.directory.string() + ": the names of all entries together are too long");
}

void RankFilesSource::add_value(StatePath path, Document document, PickleRef value) {
  auto name = joined(path);
  count_name(name);
  values_.push_back({std::move(name), std::move(path)});
  loaded_.push_back({std::move(document), value});
}

void RankFilesSource::add_value(StatePath path, const nlohmann::json& value) {
  const auto document = document_of_json(value, joined(path));
  add_value(std::move(path), document, document->root);
}

void RankFilesSource::add_loose(StatePath path, const TorchFile& file, const PickleNode& node) {
  const auto below = [&](StatePath::value_type element, const PickleNode& item) {
    auto inner = path;
    inner.push_back(std::move(element));
    add_loose(std::move(inner), file, item);
  };
  const auto view = is_tensor_like(*node.value) ? tensor_view(*node.value, node.file) : std::nullopt;
  if (view) return add(std::move(path), view->dtype, view->sizes, own_place(file, *view));
  if (node.is_open_dict()) {
    for (const auto& [key, item] : node.entries()) below(key, item);
  } else if ((node.value->list() != nullptr || node.value->tuple() != nullptr) && holds_tensor(*node.value)) {
    std::int64_t index = 0;
    for (const auto& item : node.items()) below(index++, item);
  } else {
    add_plain_value(std::move(path), file.document(), node);
  }
}

void RankFilesSource::add_plain_value(StatePath path, Document document, const PickleNode& node) {
  try {
    check_plain_value(*node.value, node.key, node.file);
  } catch (const ValueNotRead& refusal) {
    info_.remarks.push_back(std::string("left out: ") + refusal.what());
    return;
  }
  add_value(std::move(path), std::move(document), node.value);
}

std::vector<std::string> names_of_group(const PickleNode& group) {
  std::vector<std::string> names;
  if (const auto list = group.find("param_names"))
    for (const auto& name : list->items()) names.push_back(name.text());
  return names;
}

std::optional<std::size_t> find_parameter_name(const std::string& name, const std::vector<std::string>& names) {
  if (const auto same = std::ranges::find(names, name); same != names.end()) return to_index(same - names.begin());
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!name.ends_with("." + names[i]) && !names[i].ends_with("." + name)) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

std::optional<Order> order_of_numbers(const std::vector<NumberedGroup>& groups, const std::vector<std::string>& names,
                                      const std::vector<Shape>& shapes) {
  Order order;
  bool is_known = false, is_whole = true;
  std::set<std::size_t> taken;
  for (const auto& group : groups) {
    auto& own = order.emplace_back();
    is_whole = is_whole && group.names.size() == group.shapes.size();
    for (std::size_t i = 0; i < group.names.size(); ++i) {
      const auto place = find_parameter_name(group.names[i], names);
      is_known = is_known || place;
      const bool fits = place && i < group.shapes.size() && taken.insert(*place).second &&
                        (group.shapes[i] == Shape{-1} || group.shapes[i] == shapes[*place]);
      is_whole = is_whole && fits;
      if (place) own.push_back(*place);
    }
  }
  if (is_known) return is_whole ? std::optional(std::move(order)) : std::nullopt;
  return order_by_shapes(groups, shapes);
}

}  // namespace fsdp
