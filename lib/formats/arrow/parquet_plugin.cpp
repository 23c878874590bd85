#include "lib/formats/arrow/parquet_plugin.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "lib/base/process/plugin.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace detail {
namespace {

PluginKind parquet_plugin() {
  return {
      "libfsdp_parquet.so",
      "Parquet support",
      kParquetAbiSymbol,
      {kOpenParquetSymbol, kOpenParquetRecordsSymbol, kParquetColumnsSymbol, kParquetRowGroupsSymbol, kOpenIdsSymbol},
      false};
}

std::vector<std::string> lines_of(const std::filesystem::path& file, ParquetLinesFunction* function) {
  std::string text, failure;
  if (!function(file.c_str(), &text, &failure)) throw FormatError(file.string() + ": " + worded(failure));
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

}  // namespace

bool has_parquet_plugin() {
  std::vector<std::filesystem::path> candidates;
  return find_plugin(parquet_plugin(), candidates).has_value();
}

ParquetPlugin find_parquet_plugin(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> candidates;
  if (const auto library = find_plugin(parquet_plugin(), candidates)) {
    return open_parquet_plugin(*library, kParquetPluginAbi);
  }
  throw RuntimeFailure(
      fmt::format("{}: is a Parquet file, and the support for these is missing (neither {} nor {} exists): build again "
                  "with pyarrow or Arrow's C++ libraries there (scripts/setup), or give JSON Lines, CSV or text",
                  file.string(), candidates.front().string(), candidates.back().string()));
}

std::string worded(const std::string& failure) {
  if (failure.find("ecrypt") != failure.npos)
    return "is encrypted Parquet, for which no key can be given: decrypt it first";
  return failure.substr(0, failure.find_last_not_of(" \n") + 1);
}

std::vector<std::filesystem::path> parquet_plugin_candidates(const std::filesystem::path& program_directory) {
  return plugin_candidates(program_directory, parquet_plugin().file);
}

ParquetPlugin open_parquet_plugin(const std::filesystem::path& library, const std::string& abi) {
  const auto symbols = open_plugin(parquet_plugin(), library, abi);
  return {reinterpret_cast<OpenParquetFunction*>(symbols[0]), reinterpret_cast<OpenParquetRecordsFunction*>(symbols[1]),
          reinterpret_cast<ParquetLinesFunction*>(symbols[2]), reinterpret_cast<ParquetLinesFunction*>(symbols[3]),
          reinterpret_cast<OpenIdsFunction*>(symbols[4])};
}

}  // namespace detail

std::vector<std::string> parquet_columns(const std::filesystem::path& file) {
  return detail::lines_of(file, detail::find_parquet_plugin(file).columns);
}

std::vector<std::int64_t> parquet_row_groups(const std::filesystem::path& file) {
  std::vector<std::int64_t> bytes;
  for (const auto& line : detail::lines_of(file, detail::find_parquet_plugin(file).row_groups))
    bytes.push_back(std::strtoll(line.c_str(), nullptr, 10));
  return bytes;
}

}  // namespace fsdp
