#include "lib/engine/fsdp/unit_buffers.hpp"

#include <algorithm>

namespace fsdp {

std::vector<std::vector<std::size_t>> side_by_side(const std::vector<ParamLayout>& layouts, int num_shards,
                                                   bool wanted) {
  const auto fits = [&](const ParamLayout& x) { return x.buffer_rows(num_shards) == x.rows(); };
  const auto goes_with = [&](const ParamLayout& a, const ParamLayout& b) {
    return wanted && a.same_input != 0 && a.same_input == b.same_input && fits(a) && fits(b) &&
           a.row_elements() == b.row_elements() && a.trainable == b.trainable && a.is_float == b.is_float &&
           a.is_byte == b.is_byte && a.travels_in_fp8 == b.travels_in_fp8;
  };
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& group) { return goes_with(layouts[group.front()], layouts[i]); });
    if (found != groups.end()) {
      found->push_back(i);
    } else {
      groups.push_back({i});
    }
  }
  return groups;
}

std::vector<at::Tensor> make_buffers(const std::vector<ParamLayout>& layouts, const std::vector<std::size_t>& group,
                                     int num_shards, const std::function<at::Tensor(at::IntArrayRef)>& make) {
  const auto& first = layouts[group.front()];
  std::int64_t rows = 0;
  for (const auto i : group) rows += layouts[i].buffer_rows(num_shards);
  const auto all = make(first.shape_with_rows(rows));
  if (group.size() == 1) return {all};
  std::vector<at::Tensor> buffers;
  rows = 0;
  for (const auto i : group) {
    buffers.push_back(all.narrow(0, rows, layouts[i].buffer_rows(num_shards)));
    rows += buffers.back().size(0);
  }
  return buffers;
}

}  // namespace fsdp
