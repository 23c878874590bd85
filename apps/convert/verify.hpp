#pragma once
// Compares two checkpoints of any formats, tensor by tensor: --verify.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/convert/check_files.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct TensorDifference {
  std::string name;
  std::string what;                                   ///< "shape", "dtype" or "elements"
  std::string a, b;                                   ///< the two shapes, types, or values at `position`
  std::uint64_t num_different = 0, num_elements = 0;  ///< of elements
  std::vector<std::int64_t> position;                 ///< of the first different element
  double max_abs = 0;  ///< largest |a - b|; infinite when only one side is NaN or infinite
  double max_rel = 0;  ///< largest |a - b| / max(|a|, |b|)
};

struct ValueDifference {
  std::string name;
  std::string a, b;  ///< JSON; "" when the value is missing
};

struct VerifyReport {
  std::size_t num_tensors = 0;                    ///< compared
  std::size_t num_values = 0;                     ///< plain values compared
  std::uint64_t bytes = 0;                        ///< of the compared tensors, of one side
  std::vector<std::string> only_in_a, only_in_b;  ///< names of tensors
  std::vector<TensorDifference> tensors;
  std::vector<ValueDifference> values;
  bool values_compared = true;  ///< false when one side has no values at all (such as a safetensors file)

  bool equal() const { return only_in_a.empty() && only_in_b.empty() && tensors.empty() && values.empty(); }
};

struct VerifyOptions {
  /// 0: bits must be equal. T: floating-point elements may differ by T * max(1, |a|, |b|), and the dtypes may differ.
  double tolerance = 0;
  ScanOptions scan;
};

/// Reads both checkpoints once, with a piece of each per thread in memory. Collective over `group`, whose ranks share
/// the reading; the report is complete on rank 0 only.
/// \throws FormatError on damage of either; Error(failed) when stopped
VerifyReport verify(const Source& a, const Source& b, ProcessGroup& group, const VerifyOptions& options);

nlohmann::json to_json(const VerifyReport& report);
/// The report as text for people; ends with a newline.
std::string to_text(const VerifyReport& report);

}  // namespace fsdp
