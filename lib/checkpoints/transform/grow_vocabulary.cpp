#include "lib/checkpoints/transform/grow_vocabulary.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "lib/checkpoints/transform/cast.hpp"
#include "lib/checkpoints/transform/transform.hpp"

namespace fsdp {
namespace {

bool is_token_table(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("word_embeddings.weight") ||
         name.ends_with("wte.weight") || name.ends_with("lm_head.weight");
}

class GrownSource final : public DecoratedSource {
 public:
  GrownSource(std::shared_ptr<const Source> source, std::int64_t rows, NewRows start)
      : DecoratedSource(std::move(source)), start_(start), numbers_(inner_) {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (is_token_table(tensor.name) && tensor.shape.size() == 2 && is_float(tensor.dtype) && tensor.shape[0] < rows) {
        tensor.shape[0] = rows;
        tensor.stored_bytes = tensor.size_bytes();
        grown_.insert(i);
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    if (!grown_.contains(tensor)) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto& old = inner_->tensors()[tensor];
    const auto stored = element_count(old.shape);
    const auto item = dtype_size_bytes(old.dtype);
    const auto there = first < stored ? std::min(count, stored - first) : 0;
    if (there > 0) inner_->read(tensor, first, there, out.first(there * item), sums);
    if (there == count) return std::nullopt;
    const std::uint64_t columns = old.shape[1];
    std::vector<float> values(count - there, 0.0f);
    if (start_ == NewRows::mean) {
      const auto& mean = mean_of(tensor);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = mean[(first + there + i) % columns];
    }
    FloatConverter(DType::f32, old.dtype).convert(std::as_bytes(std::span(values)), out.subspan(there * item));
    return std::nullopt;
  }

 private:
  /// The mean row of a stored tensor.
  const std::vector<float>& mean_of(std::size_t tensor) const {
    const std::lock_guard lock(mutex_);
    auto& mean = means_[tensor];
    if (!mean.empty()) return mean;
    const auto& shape = inner_->tensors()[tensor].shape;
    const auto rows = static_cast<std::uint64_t>(shape[0]), columns = static_cast<std::uint64_t>(shape[1]);
    const auto step = std::max<std::uint64_t>(1, kBufferElements / columns);
    std::vector<double> sums(columns, 0.0);
    for (std::uint64_t row = 0; row < rows; row += step) {
      const auto values = numbers_.read(tensor, row * columns, std::min(step, rows - row) * columns, nullptr);
      for (std::size_t i = 0; i < values.size(); ++i) sums[i % columns] += static_cast<double>(values[i]);
    }
    for (const auto sum : sums) mean.push_back(static_cast<float>(sum / static_cast<double>(rows)));
    return mean;
  }

  static constexpr std::uint64_t kBufferElements = 1u << 20;

  NewRows start_;
  FloatReader numbers_;
  std::set<std::size_t> grown_;
  mutable std::mutex mutex_;
  mutable std::map<std::size_t, std::vector<float>> means_;
};

}  // namespace

std::unique_ptr<Source> grow_vocabulary(std::shared_ptr<const Source> source, std::int64_t rows, NewRows start) {
  return std::make_unique<GrownSource>(std::move(source), rows, start);
}

}  // namespace fsdp
