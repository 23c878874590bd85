#include "lib/compute/tensor/step_sums.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <stdexcept>

namespace fsdp {
namespace {

constexpr std::string_view kLossOf = "loss of ", kWeightOf = "weight of ";

std::size_t index_of_sum(std::string_view name, const std::vector<StepSums::Named>& sums) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].name == name) return i;
  }
  throw std::logic_error("a step has no sum '" + std::string(name) + "': Layer::sums() or the objective must name it");
}

}  // namespace

StepSums::StepSums(const std::vector<std::string>& names) {
  for (const auto& name : names) named.push_back({name});
}

std::vector<std::string> StepSums::names_of_groups(const std::vector<std::string>& groups) {
  std::vector<std::string> names;
  for (const auto prefix : {kLossOf, kWeightOf}) {
    for (const auto& group : groups) names.push_back(std::string(prefix) + group);
  }
  return names;
}

StepSums::Groups StepSums::groups() const {
  Groups found{named.size(), 0};
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (!named[i].name.starts_with(kLossOf)) continue;
    found.first = std::min(found.first, i);
    ++found.count;
  }
  return found;
}

std::vector<double> StepSums::values() const {
  std::vector<double> all{nats, weight};
  for (const auto& sum : named) all.push_back(sum.value);
  return all;
}

void StepSums::add(const std::vector<double>& values) {
  nats += values.at(0);
  weight += values.at(1);
  for (std::size_t i = 2; i < values.size(); ++i) named.at(i - 2).value += values[i];
}

at::Tensor& StepSums::on_device(const at::TensorOptions& place) {
  const auto n = static_cast<std::int64_t>(size());
  if (!pending.defined()) {
    pending = at::zeros({n}, place.dtype(at::kDouble));
  } else if (pending.numel() < n) {
    pending = at::cat({pending, at::zeros({n - pending.numel()}, pending.options())});
  }
  return pending;
}

void StepSums::add_loss(const at::Tensor& value, double weight_of_value) {
  on_device(value.options()).select(0, 0).add_(value.reshape({}));
  weight += weight_of_value;
}

void StepSums::add(std::string_view name, const at::Tensor& value) {
  if (value.is_meta()) return;  // where nothing has a value
  const auto place = static_cast<std::int64_t>(2 + index_of_sum(name, named));
  on_device(value.options()).select(0, place).add_(value.reshape({}));
}

void StepSums::add(std::string_view name, double value) { named[index_of_sum(name, named)].value += value; }

StepSums& StepSums::operator+=(const StepSums& other) {
  nats += other.nats;
  weight += other.weight;
  const bool takes_names = named.empty();
  for (std::size_t i = 0; i < other.named.size(); ++i) {
    if (takes_names) named.push_back({other.named[i].name});
    if (i == named.size() || named[i].name != other.named[i].name)
      throw std::logic_error("sums with other names: '" + other.named[i].name + "' has no place");
    named[i].value += other.named[i].value;
  }
  if (!pending.defined()) {
    pending = other.pending;
  } else if (other.pending.defined()) {
    if (pending.numel() < other.pending.numel()) on_device({});
    pending.narrow(0, 0, other.pending.numel()).add_(other.pending);
  }
  return *this;
}

}  // namespace fsdp
