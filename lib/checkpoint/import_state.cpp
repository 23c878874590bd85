#include "lib/checkpoint/import_state.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "lib/base/error.hpp"
#include "lib/mpi/agree.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

/// Reads rows of one checkpoint and remembers their checksums.
class RowReader {
 public:
  explicit RowReader(const Source& source) : source_(source) {}

  /// This rank's rows as they are stored. \pre range.num_rows > 0
  at::Tensor rows(const TensorPlace& place, const ParamLayout& layout, const ShardRange& range) {
    const auto row_elements = layout.row_elements();
    auto values =
        at::empty(layout.shape_with_rows(range.num_rows), to_scalar_type(source_.tensors()[place.tensor].dtype));
    source_.read(place.tensor, place.first + static_cast<std::uint64_t>(range.first_row * row_elements),
                 static_cast<std::uint64_t>(values.numel()),
                 {static_cast<std::byte*>(values.data_ptr()), static_cast<std::size_t>(values.nbytes())}, &sums_);
    return values;
  }

  const std::vector<ReadSum>& sums() const { return sums_; }

 private:
  const Source& source_;
  std::vector<ReadSum> sums_;
};

/// NaN equals NaN here: a damaged model is not an untied one.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.to(at::kFloat), y = b.to(at::kFloat);
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), static_cast<std::size_t>(x.nbytes())) == 0;
}

/// Only all ranks together have read whole storages.
void verify(ProcessGroup& world, const Source& source, const std::vector<ReadSum>& sums) {
  static_assert(std::is_trivially_copyable_v<ReadSum>);
  const auto parts = world.gather({reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(ReadSum)}, 0);
  std::string problem;
  if (world.rank() == 0) {
    std::vector<ReadSum> all;
    for (const auto& part : parts) {
      const auto before = all.size();
      all.resize(before + part.size() / sizeof(ReadSum));
      if (!part.empty()) std::memcpy(all.data() + before, part.data(), part.size());
    }
    // Tied tensors, and ranks with the same rows, read the same bytes.
    const auto key = [](const ReadSum& sum) { return std::tuple(sum.storage, sum.begin, sum.end); };
    std::sort(all.begin(), all.end(), [&](const ReadSum& a, const ReadSum& b) { return key(a) < key(b); });
    all.erase(std::unique(all.begin(), all.end(),
                          [&](const ReadSum& a, const ReadSum& b) { return key(a) == key(b) && a.crc32 == b.crc32; }),
              all.end());
    try {
      source.verify_sums(std::move(all));
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  fail_together(world, problem);
}

void read_all(RowReader& reader, ModelRuntime& runtime, const ExternalCheckpoint& checkpoint, AdamW* optimizer,
              const ExternalOptimizer& state) {
  const auto plan = plan_parameters(checkpoint, runtime.decoder().config);
  std::map<std::string, std::size_t> copies;  // parameters that the checkpoint holds a second time, under a tied name
  for (const auto& [alias, name] : tied_names(runtime.decoder().config)) {
    if (const auto copy = checkpoint.parameter(alias)) copies.emplace(name, *copy);
  }
  auto& engine = runtime.engine();
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto& layout = engine.layout(i);
    const auto range = engine.range(i);
    if (range.num_rows == 0) continue;
    const auto fill = [&](const at::Tensor& target, const std::optional<TensorPlace>& place) {
      auto mine = target.narrow(0, 0, range.num_rows);
      if (place) {
        mine.copy_(reader.rows(*place, layout, range));
      } else {
        mine.zero_();
      }
    };
    const auto values = reader.rows({plan[i], 0}, layout, range);
    engine.master_weight(i).narrow(0, 0, range.num_rows).copy_(values);
    const auto copy = copies.find(layout.name);
    if (copy != copies.end() && copy->second != plan[i] &&
        !same_bits(values, reader.rows({copy->second, 0}, layout, range))) {
      throw FormatError(checkpoint.path().string() + ": '" + checkpoint.source().tensors()[copy->second].name +
                        "' differs from '" + checkpoint.source().tensors()[plan[i]].name +
                        "': the model's head is tied to its token embedding, so they must be equal");
    }
    if (optimizer == nullptr || !state.found) continue;
    fill(optimizer->exp_avg(i), state.exp_avg[i]);
    fill(optimizer->exp_avg_sq(i), state.exp_avg_sq[i]);
  }
}

}  // namespace

void load_external(ModelRuntime& runtime, const ExternalCheckpoint& checkpoint, AdamW* optimizer,
                   const ExternalOptimizer& state) {
  const at::NoGradGuard no_grad;
  RowReader reader(checkpoint.source());
  std::string problem;
  try {
    read_all(reader, runtime, checkpoint, optimizer, state);
  } catch (const FormatError& error) {
    problem = error.what();
  }
  fail_together(runtime.world(), problem);
  verify(runtime.world(), checkpoint.source(), reader.sums());
  if (optimizer != nullptr && state.found) optimizer->set_steps(state.steps);
}

}  // namespace fsdp
