// The symbols of libfsdp_parquet.so; see parquet_column.hpp. No exception crosses them.
#include <exception>

#include "lib/formats/arrow/plugin/id_columns.hpp"
#include "lib/formats/arrow/plugin/parquet_columns.hpp"

#define FSDP_EXPORT extern "C" __attribute__((visibility("default")))

FSDP_EXPORT const char* fsdp_parquet_abi() { return fsdp::detail::kParquetPluginAbi; }

namespace {

/// Returns the result of `work`, or null with `failure` set.
template <class Work>
auto guarded(const Work& work, std::string* failure) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    *failure = error.what();
  } catch (...) {
    *failure = "cannot be read as Parquet";
  }
  return {};
}

}  // namespace

FSDP_EXPORT fsdp::detail::ParquetColumn* fsdp_open_parquet(const char* file, const char* field,
                                                           fsdp::detail::RowGroups groups, std::string* failure) {
  return guarded([&] { return fsdp::detail::open_text_column(file, field, groups).release(); }, failure);
}

FSDP_EXPORT fsdp::detail::ParquetColumn* fsdp_open_parquet_records(const char* file, const char* fields,
                                                                   fsdp::detail::RowGroups groups,
                                                                   std::string* failure) {
  return guarded([&] { return fsdp::detail::open_record_columns(file, fields, groups).release(); }, failure);
}

FSDP_EXPORT bool fsdp_parquet_columns(const char* file, std::string* lines, std::string* failure) {
  return guarded(
      [&] {
        *lines = fsdp::detail::column_lines(file);
        return true;
      },
      failure);
}

FSDP_EXPORT bool fsdp_parquet_row_groups(const char* file, std::string* lines, std::string* failure) {
  return guarded(
      [&] {
        *lines = fsdp::detail::row_group_lines(file);
        return true;
      },
      failure);
}

FSDP_EXPORT fsdp::detail::IdColumn* fsdp_open_ids(const char* file, const char* field, std::string* failure) {
  return guarded([&] { return fsdp::detail::open_id_column(file, field).release(); }, failure);
}
