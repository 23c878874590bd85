#pragma once
// Groups of parameters that are in memory together, one after the other.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace fsdp {

/// Purposes of a pass through all parameters.
enum class UnitPass : std::uint8_t {
  read_gradients,
  update,          ///< changes master weights; Engine::sync_parameters() is to follow
  update_and_cast  ///< changes master weights and writes Engine::all_gather_input()
};

/// A range of groups, each a list of parameters: `for (const auto& params : groups)`. To be passed through once, to its
/// end: what follows the use of a group is done when the next one is asked for.
class ParameterGroups {
 public:
  using Params = std::vector<std::size_t>;

  ParameterGroups() = default;
  ParameterGroups(const ParameterGroups&) = delete;
  ParameterGroups& operator=(const ParameterGroups&) = delete;
  virtual ~ParameterGroups() = default;

  class Iterator {
   public:
    explicit Iterator(ParameterGroups& groups) : groups_(groups), params_(groups.next()) {}
    const Params& operator*() const { return *params_; }
    Iterator& operator++() {
      params_ = groups_.next();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return params_ == nullptr; }

   private:
    ParameterGroups& groups_;
    const Params* params_;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return std::default_sentinel; }

 private:
  /// Ends the use of a group and brings the next one into memory. \return null when none is left
  virtual const Params* next() = 0;
};

}  // namespace fsdp
