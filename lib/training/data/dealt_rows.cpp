#include "lib/training/data/dealt_rows.hpp"

#include <numeric>

namespace fsdp {

std::vector<std::int64_t> rows_of_rank(const DataRanks& ranks, std::int64_t first, std::int64_t count) {
  const auto [begin, end] = ranks.share(count);
  std::vector<std::int64_t> rows(end - begin);
  std::iota(rows.begin(), rows.end(), first + begin);
  return rows;
}

std::vector<std::int64_t> records_in(const TokenLoader& reader, const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> records;
  for (const auto row : rows) {
    for (const auto record : reader.records_of(row)) records.push_back(record);
  }
  return records;
}

}  // namespace fsdp
