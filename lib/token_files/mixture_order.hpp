#pragma once
// The order of the samples of several sources: a pure function of the seed and the position, like that of one source
// (sampler.hpp), so that any number of ranks goes on at the exact sample where another number of ranks stopped.
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "lib/base/types/named_values.hpp"
#include "lib/token_files/mixture_rule.hpp"
#include "lib/token_files/sampler.hpp"

namespace fsdp {

/// The consequence of having given all samples of a source.
enum class MixEnd {
  repeat,  ///< begins again, in another order
  stop,    ///< ends the run
  drop     ///< rests until the others have ended, too; its share goes to them
};

inline constexpr std::array kMixEnds{NamedValue<MixEnd>{"repeat", MixEnd::repeat},
                                     NamedValue<MixEnd>{"stop", MixEnd::stop},
                                     NamedValue<MixEnd>{"drop", MixEnd::drop}};

/// Where a source of a mixture stands.
struct SourcePlace {
  RowPlace rows;
  std::int64_t in_mixture = 0;  ///< samples since the mixture began, or began again (drop)
  std::int64_t in_rule = 0;     ///< samples by the present weights
};

struct MixtureSource {
  std::int64_t rows = 1;    ///< now
  std::int64_t weight = 1;  ///< see whole_weights(); 0: the source rests
  std::int64_t end = 1;     ///< samples after which it has ended: its rows times its epochs
  SourcePlace place;        ///< at the first position
};

/// A sample of a mixture.
struct MixtureSample {
  std::size_t source = 0;
  SampledRow row;
};

/// Keeps the permutation of one epoch of each source (8 bytes per row), and where the order stood at some earlier
/// positions: a position that is far before the last one asked for takes longer. One object per thread.
class MixtureOrder {
 public:
  struct Options {
    MixEnd end = MixEnd::repeat;
    std::uint64_t seed = 0;
    bool shuffle = true;
    std::int64_t first_position = 0;  ///< of the stream; the sources' places are those there
    bool same_rule = true;            ///< the places' in_rule counts hold; else the rule begins at 0
  };

  /// \throws RequestError when there is no source with rows and a weight
  MixtureOrder(std::vector<MixtureSource> sources, const Options& options);

  const std::vector<MixtureSource>& sources() const { return sources_; }
  const Options& options() const { return options_; }
  /// Samples in which each source gives as many as it ends with; with MixEnd::stop those from position 0 to the end.
  std::int64_t num_samples() const { return num_samples_; }

  /// \param position  at least the first one; std::out_of_range
  MixtureSample at(std::int64_t position);
  /// Where each source stands when the samples before `position` have been given.
  std::vector<SourcePlace> places(std::int64_t position);

 private:
  /// The state of the order at a position.
  struct Point {
    std::int64_t position = 0;
    MixtureRule rule;
    std::vector<std::int64_t> samples, in_mixture;  ///< of each source
  };
  void seek(std::int64_t position);
  /// Gives the sample at point_.position. \return its source
  std::size_t advance();
  MixtureRule rule_of(const std::vector<std::int64_t>& in_mixture) const;
  bool has_ended(std::size_t source, const std::vector<std::int64_t>& in_mixture) const;
  std::int64_t count_samples();

  std::vector<MixtureSource> sources_;
  Options options_;
  std::vector<Sampler> samplers_;
  Point first_, now_;
  std::deque<Point> earlier_;
  std::int64_t num_samples_ = 0;
};

}  // namespace fsdp
