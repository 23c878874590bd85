#include "lib/checkpoints/programs/fsdp1/flat_layout.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/checkpoints/transform/cast.hpp"
#include "lib/checkpoints/transform/transform.hpp"

namespace fsdp {
namespace {

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw FormatError("parameters have more elements than 64 bits can count");
  return sum;
}

bool same_offsets(const FlatLayout& a, const FlatLayout& b) {
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [](const FlatItem& x, const FlatItem& y) { return x.offset == y.offset; });
}

constexpr double kPadding = 42.0;  // FSDP's padding value, in debug and release builds alike

/// The key without its end "_flat_param" or "flat_param".
std::string module_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot + 1);
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// An attempt: what it found, and what is wrong with it, a line per unit or parameter.
struct Attempt {
  FlatUnits result;
  std::vector<std::string> problems;
  bool lacks_shapes = false;  ///< a unit has no shapes at all
};

class Finder {
 public:
  Finder(const Source& source, const ParameterShapes& shapes) : source_(source), shapes_(shapes) {
    for (std::size_t i = 0; i < source.tensors().size(); ++i) {
      const auto& tensor = source.tensors()[i];
      (is_flat_key(tensor) ? flat_ : plain_).emplace(tensor.name, i);
    }
  }

  /// All prefixes at which the common beginning of the keys can be cut, shortest first.
  std::vector<std::string> prefixes() const {
    auto common = module_of(flat_.begin()->first);
    for (const auto& [key, number] : flat_) {
      const auto module = module_of(key);
      const auto end = std::mismatch(common.begin(), common.end(), module.begin(), module.end()).first;
      common.erase(end, common.end());
    }
    std::vector<std::string> found{""};
    for (auto dot = common.find('.'); dot != std::string::npos; dot = common.find('.', dot + 1)) {
      found.push_back(common.substr(0, dot + 1));
    }
    return found;
  }

  Attempt attempt(const std::string& prefix) const;

 private:
  void assign(const std::string& prefix, Attempt& attempt) const;
  bool is_plain_copy(const std::string& prefix, std::size_t parameter) const;
  std::optional<FlatLayout> fit(const FlatUnit& unit, std::string& problem) const;
  bool padding_is_intact(const FlatUnit& unit, const FlatLayout& layout, std::string& tried) const;
  std::string explain(const FlatUnit& unit, const std::string& tried) const;

  const Source& source_;
  const ParameterShapes& shapes_;
  std::map<std::string, std::size_t> flat_, plain_;  // by key
};

bool Finder::is_plain_copy(const std::string& prefix, std::size_t parameter) const {
  const auto it = plain_.find(prefix + shapes_.parameters[parameter].name);
  return it != plain_.end() && source_.tensors()[it->second].shape == shapes_.parameters[parameter].shape;
}

void Finder::assign(const std::string& prefix, Attempt& attempt) const {
  std::unordered_map<std::string_view, std::size_t> unit_of;
  auto& units = attempt.result.units;
  for (const auto& [key, number] : flat_) units.push_back({number, module_of(key), {}, {}});
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (!unit_of.emplace(units[i].module, i).second) {
      attempt.problems.push_back("\"" + units[i].module + "\" has two flat parameters");
    }
  }
  for (std::size_t i = 0; i < shapes_.parameters.size(); ++i) {
    const auto full = prefix + shapes_.parameters[i].name;
    if (const auto it = plain_.find(full); it != plain_.end()) {
      attempt.result.has_slices |= source_.tensors()[it->second].shape != shapes_.parameters[i].shape;
    }
    // The longest module path wins, since nested units own their parameters.
    auto cut = full.size();
    auto it = unit_of.end();
    while (it == unit_of.end() && cut > 0) {
      cut = full.rfind('.', cut - 1);
      cut = cut == std::string::npos ? 0 : cut;
      it = unit_of.find(std::string_view(full).substr(0, cut == 0 ? 0 : cut + 1));
    }
    if (it != unit_of.end()) {
      units[it->second].parameters.push_back(i);
    } else if (is_plain_copy(prefix, i)) {
      attempt.result.separate.push_back(i);
    } else {
      attempt.problems.push_back(full + " " + shape_text(shapes_.parameters[i].shape) + " lies in no unit");
    }
  }
}

bool Finder::padding_is_intact(const FlatUnit& unit, const FlatLayout& layout, std::string& tried) const {
  const auto dtype = source_.tensors()[unit.tensor].dtype;
  if (layout.has_padding() && !is_float(dtype)) return false;
  std::vector<std::byte> bytes;
  for (const auto& item : layout.items) {
    if (item.gap == 0) continue;
    const auto size = dtype_size_bytes(dtype);
    bytes.resize(item.gap * size);
    source_.read(unit.tensor, item.offset + item.count, item.gap, bytes, nullptr);
    for (std::uint64_t i = 0; i < item.gap; ++i) {
      const auto found = float_to_double(dtype_row(dtype).format, std::span(bytes).subspan(i * size, size));
      if (found == kPadding) continue;
      tried += fmt::format(
          "; with offsets that are multiples of {} it would fit, but element {} should be padding, {}, "
          "and is {}",
          layout.alignment, item.offset + item.count + i, kPadding, found);
      return false;
    }
  }
  return true;
}

std::string Finder::explain(const FlatUnit& unit, const std::string& tried) const {
  const auto& key = source_.tensors()[unit.tensor].name;
  std::vector<std::uint64_t> counts;
  std::string names;
  for (const auto i : unit.parameters) {
    const auto& parameter = shapes_.parameters[i];
    counts.push_back(element_count(parameter.shape));
    if (counts.size() <= 4) names += (names.empty() ? "" : ", ") + parameter.name + " " + shape_text(parameter.shape);
  }
  if (counts.size() > 4) names += ", ...";
  const auto stored = num_elements(source_.tensors()[unit.tensor].shape);
  auto text = fmt::format("\"{}\" has {} elements; its {} parameters ({}) need {} without padding", key, stored,
                          counts.size(), names, flat_layout(counts, 0, 1).size);
  for (const auto alignment : flat_alignments()) {
    const std::uint64_t tail = std::max<std::int64_t>(1, source_.tensors()[unit.tensor].num_shards);
    text +=
        fmt::format(", {} with offsets that are multiples of {}", flat_layout(counts, alignment, tail).size, alignment);
  }
  return text + tried;
}

std::optional<FlatLayout> Finder::fit(const FlatUnit& unit, std::string& problem) const {
  std::vector<std::uint64_t> counts;
  for (const auto i : unit.parameters) {
    counts.push_back(element_count(shapes_.parameters[i].shape));
  }
  const auto& flat = source_.tensors()[unit.tensor];
  // Padding to a multiple of the world size gives every rank a shard.
  std::vector<std::uint64_t> worlds{static_cast<std::uint64_t>(std::max<std::int64_t>(1, flat.num_shards))};
  if (source_.info().world_size > 0) worlds.push_back(static_cast<std::uint64_t>(source_.info().world_size));
  const auto candidates = layouts_of_size(counts, element_count(flat.shape), worlds);
  std::string tried;
  std::optional<FlatLayout> found;
  for (const auto& candidate : candidates) {
    if (!padding_is_intact(unit, candidate, tried)) continue;
    if (found) {
      problem = explain(unit, fmt::format("; both offsets that are multiples of {} and of {} fit", found->alignment,
                                          candidate.alignment));
      return std::nullopt;
    }
    found = candidate;
  }
  if (!found) problem = explain(unit, tried);
  return found;
}

Attempt Finder::attempt(const std::string& prefix) const {
  Attempt attempt;
  attempt.result.prefix = prefix;
  assign(prefix, attempt);
  for (auto& unit : attempt.result.units) {
    if (unit.parameters.empty()) {
      attempt.lacks_shapes = true;
      attempt.problems.push_back(
          fmt::format("\"{}\": none of the shapes belongs to it", source_.tensors()[unit.tensor].name));
      continue;
    }
    std::string problem;
    auto layout = fit(unit, problem);
    if (!layout && !attempt.result.has_slices) {
      // Ignored parameters, and buffers that a reference lists like parameters, have entries of their own.
      auto rest = unit;
      const auto apart = [&](std::size_t i) { return is_plain_copy(prefix, i); };
      rest.parameters.erase(std::remove_if(rest.parameters.begin(), rest.parameters.end(), apart),
                            rest.parameters.end());
      std::string ignored;
      if (!rest.parameters.empty() && rest.parameters.size() < unit.parameters.size()) layout = fit(rest, ignored);
      if (layout) {
        std::copy_if(unit.parameters.begin(), unit.parameters.end(), std::back_inserter(attempt.result.separate),
                     apart);
        unit.parameters = std::move(rest.parameters);
      }
    }
    if (layout) {
      unit.layout = std::move(*layout);
    } else {
      attempt.problems.push_back(std::move(problem));
    }
  }
  return attempt;
}

/// Sorts by the first parameter anywhere inside the module, outer modules first.
void sort_units(FlatUnits& units, const ParameterShapes& shapes) {
  std::map<std::string, std::size_t> first;  // by module
  for (const auto& unit : units.units) {
    auto& lowest = first.emplace(unit.module, std::numeric_limits<std::size_t>::max()).first->second;
    for (std::size_t i = 0; i < shapes.parameters.size() && i < lowest; ++i) {
      if ((units.prefix + shapes.parameters[i].name).starts_with(unit.module)) lowest = i;
    }
  }
  std::sort(units.units.begin(), units.units.end(), [&](const FlatUnit& a, const FlatUnit& b) {
    const auto x = first.at(a.module), y = first.at(b.module);
    return x != y ? x < y : a.module.size() < b.module.size();
  });
}

[[noreturn]] void refuse(const Source& source, const ParameterShapes& shapes, const Attempt& attempt) {
  const auto where =
      source.info().directory.empty() ? std::string("the local state") : source.info().directory.string();
  auto text = fmt::format("{}: the shapes of {} do not fit its flat parameters:", where,
                          shapes.origin.empty() ? "the parameters" : shapes.origin);
  constexpr std::size_t kMost = 8;
  for (std::size_t i = 0; i < attempt.problems.size() && i < kMost; ++i) text += "\n  " + attempt.problems[i];
  if (attempt.problems.size() > kMost) text += fmt::format("\n  ... and {} more", attempt.problems.size() - kMost);
  text += "\nGive the shapes of the model that was trained, in the order of its named_parameters()";
  if (attempt.lacks_shapes) throw RequestError(text);
  throw FormatError(text);
}

}  // namespace

bool FlatLayout::has_padding() const {
  return std::any_of(items.begin(), items.end(), [](const FlatItem& item) { return item.gap != 0; });
}

FlatLayout flat_layout(std::span<const std::uint64_t> counts, std::uint64_t alignment, std::uint64_t world_size) {
  FlatLayout layout;
  layout.alignment = alignment;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto end = plus(layout.size, counts[i]);
    // The gap after a parameter aligns the next one; the gap after the last one pads to equal shards.
    const auto multiple = alignment == 0 ? 1 : i + 1 < counts.size() ? alignment : world_size;
    const auto gap = (multiple - end % multiple) % multiple;
    layout.items.push_back({.offset = layout.size, .count = counts[i], .gap = gap});
    layout.size = plus(end, gap);
  }
  return layout;
}

std::span<const std::uint64_t> flat_alignments() {
  static constexpr std::array<std::uint64_t, 5> kAlignments{4, 8, 2, 16, 1};
  return kAlignments;
}

std::vector<FlatLayout> layouts_of_size(std::span<const std::uint64_t> counts, std::uint64_t size,
                                        std::span<const std::uint64_t> world_sizes) {
  std::vector<FlatLayout> found;
  auto packed = flat_layout(counts, 0, 1);
  if (packed.size == size) {
    found.push_back(std::move(packed));
    return found;
  }
  if (packed.size > size) return found;
  for (const auto alignment : flat_alignments()) {
    for (const auto world_size : world_sizes) {
      auto layout = flat_layout(counts, alignment, world_size);
      const auto known = [&](const FlatLayout& other) { return same_offsets(layout, other); };
      if (layout.size == size && std::none_of(found.begin(), found.end(), known)) found.push_back(std::move(layout));
    }
  }
  return found;
}

PieceSource::PieceSource(std::vector<std::shared_ptr<const Source>> sources) : sources_(std::move(sources)) {
  info_ = sources_.front()->info();
  for (std::size_t i = 1; i < sources_.size(); ++i) {
    const auto& files = sources_[i]->info().files;
    info_.files.insert(info_.files.end(), files.begin(), files.end());
  }
}

void PieceSource::add_tensor(SourceTensor tensor, std::vector<TensorPiece> pieces, std::vector<TensorPiece> padding,
                             bool is_alias) {
  tensors_.push_back(std::move(tensor));
  assemblies_.push_back({std::move(pieces), std::move(padding), is_alias});
}

void PieceSource::add_value(SourceValue value, std::size_t source, std::size_t number) {
  values_.push_back(std::move(value));
  origins_.push_back({source, number, {}});
}

void PieceSource::add_value(SourceValue value, LoadedValue loaded) {
  values_.push_back(std::move(value));
  origins_.push_back({0, 0, std::move(loaded)});
}

std::optional<std::uint32_t> PieceSource::read_piece(const TensorPiece& piece, std::span<std::byte> out,
                                                     std::vector<ReadSum>* sums) const {
  const auto before = sums != nullptr ? sums->size() : 0;
  const auto crc = sources_[piece.source]->read(piece.tensor, piece.first, piece.count, out, sums);
  if (sums == nullptr) return crc;
  // Storages of all sources share one numbering. A number that is too large for it is not checked.
  const auto fits = [&](const ReadSum& sum) {
    return sum.storage <= (std::numeric_limits<std::uint32_t>::max() - piece.source) / sources_.size();
  };
  const auto begin = iterator_at(*sums, before);
  sums->erase(std::remove_if(begin, sums->end(), [&](const ReadSum& sum) { return !fits(sum); }), sums->end());
  for (auto i = before; i < sums->size(); ++i) {
    (*sums)[i].storage = static_cast<std::uint32_t>((*sums)[i].storage * sources_.size() + piece.source);
  }
  return crc;
}

std::optional<std::uint32_t> PieceSource::read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                               std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  const auto& assembly = assemblies_.at(tensor);
  const auto& description = tensors_[tensor];
  check_read(description, first, count, out.size());
  if (assembly.is_alias) sums = nullptr;
  const auto item = dtype_size_bytes(description.dtype);
  std::optional<std::uint32_t> crc;
  std::uint64_t begin = 0, done = 0;  // start of the piece in the tensor; elements done
  for (const auto& piece : assembly.pieces) {
    const auto from = std::max(first, begin), to = std::min(first + count, begin + piece.count);
    if (from < to) {
      const TensorPiece part{
          .source = piece.source, .tensor = piece.tensor, .first = piece.first + (from - begin), .count = to - from};
      const auto piece_crc = read_piece(part, out.subspan((from - first) * item, (to - from) * item), sums);
      if (to - from == count) crc = piece_crc;
      done += to - from;
    }
    begin += piece.count;
  }
  if (done != count) throw std::logic_error("pieces of \"" + description.name + "\" do not make up its elements");
  if (sums != nullptr && first + count == begin) {
    std::vector<std::byte> padding;
    for (const auto& piece : assembly.padding) {
      padding.resize(piece.count * item);
      read_piece(piece, padding, sums);
    }
  }
  return crc;
}

bool PieceSource::prefers_whole(std::size_t tensor) const {
  const auto& pieces = assemblies_.at(tensor).pieces;
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const TensorPiece& piece) { return sources_[piece.source]->prefers_whole(piece.tensor); });
}

LoadedValue PieceSource::value(std::size_t value) const {
  const auto& origin = origins_.at(value);
  return origin.loaded.document != nullptr ? origin.loaded : sources_[origin.source]->value(origin.number);
}

std::vector<ReadSum> PieceSource::verify_sums(std::vector<ReadSum> sums) const {
  std::vector<std::vector<ReadSum>> by_source(sources_.size());
  for (auto sum : sums) {
    auto& own = by_source[sum.storage % sources_.size()];
    sum.storage = static_cast<std::uint32_t>(sum.storage / sources_.size());
    own.push_back(sum);
  }
  std::vector<ReadSum> uncovered;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    for (auto sum : sources_[i]->verify_sums(std::move(by_source[i]))) {
      sum.storage = static_cast<std::uint32_t>(sum.storage * sources_.size() + i);
      uncovered.push_back(sum);
    }
  }
  return uncovered;
}

bool is_flat_key(const SourceTensor& tensor) {
  const std::string_view name = tensor.name;
  const auto last = name.substr(name.rfind('.') + 1);  // npos + 1 == 0: the whole name
  return tensor.shape.size() == 1 && (last == "_flat_param" || last == "flat_param");
}

FlatUnits find_flat_units(const Source& source, const ParameterShapes& shapes) {
  const Finder finder(source, shapes);
  std::optional<Attempt> best;
  for (const auto& prefix : finder.prefixes()) {
    auto attempt = finder.attempt(prefix);
    if (!best || attempt.problems.size() < best->problems.size()) best = std::move(attempt);
    if (best->problems.empty()) break;
  }
  if (!best->problems.empty()) refuse(source, shapes, *best);
  sort_units(best->result, shapes);
  return std::move(best->result);
}

}  // namespace fsdp
