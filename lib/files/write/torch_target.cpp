#include "lib/files/write/torch_target.hpp"

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_check.hpp"
#include "lib/files/formats/pickle_emit.hpp"
#include "lib/files/formats/torch_pickle.hpp"
#include "lib/files/write/nested.hpp"

namespace fsdp {
namespace {

/// What torch.save calls the archive in a file of this name.
std::string archive_name(const std::filesystem::path& file) {
  constexpr std::size_t longest = 1000;
  const auto stem = file.stem().string();
  return stem.empty() || stem.size() > longest || !detail::is_utf8(stem) ? "archive" : stem;
}

class NestedPickle {
 public:
  explicit NestedPickle(const Source& source) : source_(source) {}

  std::string write() {
    emit(nest(source_));
    return pickle_.finish();
  }
  /// Numbers of the source's tensors in the order in which they were written: storage k is that of tensor order()[k].
  const std::vector<std::size_t>& order() const { return order_; }

 private:
  void emit(const NestedNode& node) {
    if (const auto* dict = std::get_if<NestedDict>(&node.content)) {
      pickle_.empty_dict();
      pickle_.mark();
      for (const auto& [key, item] : dict->items) {
        pickle_.string(key);
        emit(*item);
      }
      pickle_.set_items();
    } else if (const auto* list = std::get_if<NestedList>(&node.content)) {
      pickle_.empty_list();
      pickle_.mark();
      for (const auto& [position, item] : list->items) emit(*item);
      pickle_.append_items();
    } else {
      emit(std::get<NestedLeaf>(node.content));
    }
  }
  void emit(const NestedLeaf& leaf) {
    if (leaf.is_tensor) {
      const auto& tensor = source_.tensors()[leaf.number];
      pickle_tensor(pickle_, tensor.dtype, tensor.shape, std::to_string(order_.size()));
      order_.push_back(leaf.number);
    } else {
      const auto loaded = source_.value(leaf.number);
      emit_pickle_value(pickle_, *loaded.value, PickleStyle::weights_only, source_.values()[leaf.number].name);
    }
  }

  const Source& source_;
  PickleWriter pickle_;
  std::vector<std::size_t> order_;
};

}  // namespace

TorchTarget::TorchTarget(const std::filesystem::path& output)
    : name_(output.filename()), zip_(archive_name(output.filename())) {}

Layout TorchTarget::plan(const Source& source) {
  zip_ = ZipPlan(archive_name(name_));
  NestedPickle pickle(source);
  zip_.add("data.pkl", pickle.write());
  zip_.add(".format_version", "1");  // storages come in the order in which the pickle names them
  zip_.add(".storage_alignment", "64");
  zip_.add("byteorder", "little");
  Layout layout;
  for (std::size_t key = 0; key < pickle.order().size(); ++key) {
    const auto number = pickle.order()[key];
    const auto& tensor = source.tensors()[number];
    const auto count = static_cast<std::uint64_t>(num_elements(tensor.shape));
    const auto offset = zip_.add_data("data/" + std::to_string(key), count * dtype_size_bytes(tensor.dtype));
    layout.segments.push_back({0, offset, number, 0, count});
  }
  zip_.add("version", "3\n");
  zip_.finish();
  layout.files.push_back({name_, zip_.size_bytes()});
  layout.literals.push_back({0, 0, zip_.head()});
  return layout;
}

std::vector<LayoutLiteral> TorchTarget::finish(std::span<const std::uint32_t> crcs) {
  std::vector<LayoutLiteral> literals;
  for (auto& piece : zip_.tail(crcs)) literals.push_back({0, piece.offset_bytes, std::move(piece.bytes)});
  return literals;
}

}  // namespace fsdp
