#pragma once
// Reads all elements of checkpoints once, in pieces that threads and ranks share: --check, which reports damage and
// elements that are not finite, and what --verify shares with it.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct NonFinite {
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();  ///< index of the first such element; max: none
};

/// Counts NaN and infinite elements in `elements` (whole elements, little-endian). A complex element counts by its
/// worse part. Integers are finite.
NonFinite count_non_finite(DType dtype, std::span<const std::byte> elements);

struct ElementValue {
  double real = 0, imaginary = 0;
};
/// Element number `index` as a number: exact except for 64-bit integers beyond 2^53.
ElementValue element_value(DType dtype, std::span<const std::byte> elements, std::uint64_t index);

/// The shortest text that reads back as the same number: "0.1", "1e-08", "inf", "nan".
std::string number_text(double value);

/// Elements [first, first + count) of tensor number `tensor`.
struct ElementRange {
  std::size_t tensor = 0;
  std::uint64_t first = 0, count = 0;
  std::uint64_t bytes = 0;
  bool whole = false;  ///< all of a tensor that is best read at once; only one such range is visited at a time
};

/// Appends the elements of tensor number `tensor` to `ranges`: in ranges of at most `piece_bytes`, or with `whole` as
/// one range.
void add_ranges(const SourceTensor& described, std::size_t tensor, bool whole, std::uint64_t piece_bytes,
                std::vector<ElementRange>& ranges);

struct ScanOptions {
  int jobs = 0;                          ///< threads per rank; 0: the processors that this rank may use, at most 4
  std::uint64_t piece_bytes = 4u << 20;  ///< bytes that a thread reads at once
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress;  ///< on rank 0, by one thread
  std::function<bool()> stop;                                                         ///< true ends the scan
};

/// Calls visit(range, thread) for this rank's share of `ranges`, from `options.jobs` threads; thread numbers start at
/// 0. Collective over `group`: every rank passes the same ranges. An error of one rank is thrown on every rank.
/// \throws what `visit` throws; Error(failed) when `stop` returned true
void scan(std::span<const ElementRange> ranges, ProcessGroup& group, const ScanOptions& options,
          const std::function<void(const ElementRange&, int thread)>& visit);

/// A buffer of `size` bytes for a range: `kept`, which grows to the size of a piece, or `passing` for a whole tensor.
std::span<std::byte> buffer_for(const ElementRange& range, std::uint64_t size, std::vector<std::byte>& kept,
                                std::vector<std::byte>& passing);

/// The number of threads that scan() uses with these options.
int scan_threads(const ScanOptions& options);

/// Returns the sums of all ranks on rank 0, and nothing elsewhere. Collective.
std::vector<ReadSum> gather_sums(ProcessGroup& group, const std::vector<std::vector<ReadSum>>& by_thread);

struct CheckReport {
  struct NonFiniteTensor {
    std::string name;
    std::uint64_t elements = 0, nan = 0, inf = 0;
    std::vector<std::int64_t> first;  ///< position of the first such element
  };
  std::size_t num_tensors = 0, num_values = 0;
  std::uint64_t bytes = 0;            ///< of tensors
  std::vector<std::string> damage;    ///< a sentence per tensor or value that cannot be read, and per wrong checksum
  std::vector<std::string> not_read;  ///< a sentence per undamaged value of a class that is refused
  std::vector<NonFiniteTensor> non_finite;
};

/// Reads every tensor and value: the reader finds wrong bounds, holes and overlaps; recorded checksums are compared,
/// NaN and infinite elements counted. Continues after damage. (Damage that makes the checkpoint impossible to open is
/// thrown by open_source().) Collective over `group`, whose ranks share the reading; the report is complete on rank 0
/// only.
/// \throws IoError; Error(failed) when stopped
CheckReport check(const Source& source, ProcessGroup& group, const ScanOptions& options);

nlohmann::json to_json(const CheckReport& report);
/// The report as text for people; ends with a newline.
std::string to_text(const CheckReport& report);

/// The position of element number `index` of a row-major tensor.
std::vector<std::int64_t> position_of(std::uint64_t index, const Shape& shape);

}  // namespace fsdp
