#include "lib/checkpoints/transform/tracked_source.hpp"

#include <atomic>
#include <utility>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// A mark per tensor, then per value.
class TrackedSource::Marks {
 public:
  explicit Marks(std::size_t count) : read_(count) {}
  void set(std::size_t i) { read_[i].store(true, std::memory_order_relaxed); }
  std::string text() const {
    std::string text;
    for (const auto& mark : read_) text += mark.load(std::memory_order_relaxed) ? '1' : '0';
    return text;
  }

 private:
  std::vector<std::atomic<bool>> read_;
};

TrackedSource::TrackedSource(std::shared_ptr<const Source> source)
    : DecoratedSource(std::move(source)),
      marks_(std::make_unique<Marks>(inner_->tensors().size() + inner_->values().size())) {
  for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
    add_tensor(i, inner_->tensors()[i]);
    if (num_elements(inner_->tensors()[i].shape) == 0) marks_->set(i);
  }
  add_all_values();
}

TrackedSource::~TrackedSource() = default;

std::optional<std::uint32_t> TrackedSource::read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                                 std::span<std::byte> out, std::vector<ReadSum>* sums) const {
  marks_->set(tensor);
  return inner_->read(tensor, first, count, out, sums);
}

LoadedValue TrackedSource::value(std::size_t value) const {
  marks_->set(tensors_.size() + value);
  return inner_->value(value);
}

std::vector<std::string> TrackedSource::unread(ProcessGroup& ranks) const {
  auto any = marks_->text();
  for (const auto& of_rank : ranks.gather(any, 0)) {
    for (std::size_t i = 0; i < any.size(); ++i) any[i] = any[i] == '1' || of_rank[i] == '1' ? '1' : '0';
  }
  any = ranks.broadcast_text(any, 0);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < any.size(); ++i) {
    if (any[i] == '1') continue;
    names.push_back(i < tensors_.size() ? tensors_[i].name : values_[i - tensors_.size()].name);
  }
  return names;
}

std::set<std::string> files_read(const SourceInfo& info) {
  std::set<std::string> names{"config.json", "generation_config.json", "run.json"};
  for (const auto& file : info.files) names.insert(file.filename().string());
  // The index of the parts, not one that lies beside a whole file.
  const bool is_whole = names.contains("model.safetensors") || names.contains("pytorch_model.bin");
  if (!is_whole) names.insert({"model.safetensors.index.json", "pytorch_model.bin.index.json"});
  return names;
}

}  // namespace fsdp
