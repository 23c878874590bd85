#pragma once
// Reads a checkpoint once, whole, and says what is wrong with it: --check.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/files/transform/check_scan.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

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
