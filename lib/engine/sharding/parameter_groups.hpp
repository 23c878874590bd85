#pragma once
// Groups of parameters that are in memory together, one after the other.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

/// Purposes of a pass through all parameters.
enum class UnitPass : std::uint8_t {
  read_gradients,
  update,          ///< changes master weights; Engine::sync_parameters() is to follow
  update_and_cast  ///< changes master weights and writes Engine::all_gather_input()
};

/// A range of groups, each a list of parameters: `for (const auto& params : groups)`. To be passed through once, to its
/// end: what follows the use of a group is done when the next one is asked for, and its errors are thrown there.
class ParameterGroups {
 public:
  using Params = std::vector<std::size_t>;

  class Source {
   public:
    virtual ~Source() = default;
    /// Ends the use of a group and brings the next one into memory. \return null when none is left
    virtual const Params* next() = 0;
  };

  class Iterator {
   public:
    explicit Iterator(Source& source) : source_(source), params_(source.next()) {}
    const Params& operator*() const { return *params_; }
    Iterator& operator++() {
      params_ = source_.next();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return params_ == nullptr; }

   private:
    Source& source_;
    const Params* params_;
  };

  explicit ParameterGroups(std::unique_ptr<Source> source) : source_(std::move(source)) {}
  Iterator begin() { return Iterator(*source_); }
  std::default_sentinel_t end() const { return std::default_sentinel; }

 private:
  std::unique_ptr<Source> source_;
};

}  // namespace fsdp
