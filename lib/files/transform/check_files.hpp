#pragma once
// What --check and --verify ask of raw elements: are they finite, how far are they apart.
// Goes through the elements of a checkpoint once, in pieces that threads and ranks share: what --check and --verify do.
// Reads a checkpoint once, whole, and says what is wrong with it: --check.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lib/base/dtype.hpp"
#include "lib/files/read/source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct NonFinite {
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();  ///< index of the first of them; max: none
};

/// Counts in `elements` (whole ones, little-endian); a complex element counts by its worse part. Integers have none.
NonFinite count_non_finite(DType dtype, std::span<const std::byte> elements);

struct ElementValue {
  double real = 0, imaginary = 0;
};
/// Element number `index` as a number: exact but for 64-bit integers beyond 2^53.
ElementValue element_value(DType dtype, std::span<const std::byte> elements, std::uint64_t index);

/// As short as it can be and still be the same number: "0.1", "1e-08", "inf", "nan".
std::string number_text(double value);

/// Elements [first, first + count) of tensor number `tensor`.
struct ElementRange {
  std::size_t tensor = 0;
  std::uint64_t first = 0, count = 0;
  std::uint64_t bytes = 0;
  bool whole = false;  ///< all of a tensor that is best read at once: only one of them is visited at a time
};

/// Appends the elements of tensor number `tensor` in ranges of at most `piece_bytes`, or as one range.
void add_ranges(const SourceTensor& described, std::size_t tensor, bool whole, std::uint64_t piece_bytes,
                std::vector<ElementRange>& ranges);

struct ScanOptions {
  int jobs = 0;                          ///< threads per rank; 0: the processors this rank may use, at most 4
  std::uint64_t piece_bytes = 4u << 20;  ///< read at once by a thread
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress;  ///< rank 0, one thread
  std::function<bool()> stop;                                                         ///< true ends the scan
};

/// Calls visit(range, thread) for this rank's share of `ranges`, from `options.jobs` threads; thread numbers from 0.
/// Collective over `group`: every rank passes the same ranges. An error of one rank becomes every rank's.
/// \throws what `visit` throws; Error(failed) when `stop` said so
void scan(std::span<const ElementRange> ranges, ProcessGroup& group, const ScanOptions& options,
          const std::function<void(const ElementRange&, int thread)>& visit);

/// `size` bytes for a range: `kept`, which grows to a piece, or for a whole tensor `passing`.
std::span<std::byte> buffer_for(const ElementRange& range, std::uint64_t size, std::vector<std::byte>& kept,
                                std::vector<std::byte>& passing);

/// Threads that `scan` uses with these options.
int scan_threads(const ScanOptions& options);

/// Collective: the sums that all ranks collected, on rank 0; empty elsewhere.
std::vector<ReadSum> gather_sums(ProcessGroup& group, const std::vector<std::vector<ReadSum>>& by_thread);

struct CheckReport {
  struct NonFiniteTensor {
    std::string name;
    std::uint64_t elements = 0, nan = 0, inf = 0;
    std::vector<std::int64_t> first;  ///< position of the first of them
  };
  std::size_t num_tensors = 0, num_values = 0;
  std::uint64_t bytes = 0;            ///< of tensors
  std::vector<std::string> damage;    ///< one sentence per tensor or value that cannot be read, and per wrong checksum
  std::vector<std::string> not_read;  ///< one sentence per value that is whole, and of a class that is refused
  std::vector<NonFiniteTensor> non_finite;
};

/// Reads every tensor and value: bounds, holes and overlaps are the reader's to find, recorded checksums are compared,
/// and NaN and infinite elements counted. Goes on after damage. (What makes the checkpoint impossible to open at all is
/// open_source()'s to throw.) Collective over `group`, which shares the reading; the report is complete on rank 0 only.
/// \throws IoError; Error(failed) when stopped
CheckReport check(const Source& source, ProcessGroup& group, const ScanOptions& options);

nlohmann::json to_json(const CheckReport& report);
/// For people; ends with a newline.
std::string to_text(const CheckReport& report);

/// Position of element number `index` of a row-major tensor.
std::vector<std::int64_t> position_of(std::uint64_t index, const Shape& shape);

}  // namespace fsdp
