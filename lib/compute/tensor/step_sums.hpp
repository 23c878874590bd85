#pragma once
// The sums of a training step, which are reduced over all ranks together.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Sums over a micro-batch or a step, in float64: those of the loss, and any that layers and the objective add by a
/// name. A device's sums stay on the device until Ops::fetch(), which waits for the device; a training step calls it
/// once, after all other work has been queued.
struct StepSums {
  struct Named {
    std::string name;
    double value = 0;
  };

  StepSums() = default;
  /// \param names  known before the first step and equal on all ranks, so that the values can be reduced together
  explicit StepSums(const std::vector<std::string>& names);

  double nats = 0;    ///< losses of the targets that count, times their weights
  double weight = 0;  ///< weights of these targets: their number where each one weighs 1
  std::vector<Named> named;
  /// float64 on the device, to be added to the fields above: nats, weight, and then the named sums in their order, or
  /// the first of them. May be undefined.
  at::Tensor pending;

  /// Names of two sums for each of several groups of tokens, such as the sources of a mixture: all losses, then all
  /// weights. Losses of groups are added by Ops::cross_entropy().
  static std::vector<std::string> names_of_groups(const std::vector<std::string>& groups);
  /// Index in `named` of the first sum of groups, and how many groups there are: none where no group has a sum.
  struct Groups {
    std::size_t first = 0, count = 0;
  };
  Groups groups() const;

  std::size_t size() const { return 2 + named.size(); }
  /// All values of the host in the order of `pending`.
  std::vector<double> values() const;
  /// Adds as many values, or the first of them.
  void add(const std::vector<double>& values);
  /// \return `pending` with a value for each sum. \param place  device of a new tensor
  at::Tensor& on_device(const at::TensorOptions& place);
  /// Adds to the loss. \param value  one number, on any device: nothing waits for it
  void add_loss(const at::Tensor& value, double weight_of_value);
  /// Adds to a named sum. \param value  one number, on any device: nothing waits for it. A number without a value, of
  /// the device meta, adds nothing
  void add(std::string_view name, const at::Tensor& value);
  void add(std::string_view name, double value);
  /// \param other  has the same names, or the first of them. If this has none, it takes the other's.
  StepSums& operator+=(const StepSums& other);
};

}  // namespace fsdp
