// The symbols of libfsdp_parquet.so; see parquet_column.hpp. No exception crosses them.
#include <exception>

#include "lib/corpus/plugin/text_column.hpp"

#define FSDP_EXPORT extern "C" __attribute__((visibility("default")))

FSDP_EXPORT const char* fsdp_parquet_abi() { return fsdp::detail::kParquetPluginAbi; }

FSDP_EXPORT fsdp::detail::ParquetColumn* fsdp_open_parquet(const char* file, const char* field, std::string* failure) {
  try {
    return fsdp::detail::open_text_column(file, field).release();
  } catch (const std::exception& error) {
    *failure = error.what();
  } catch (...) {
    *failure = "cannot be read as Parquet";
  }
  return nullptr;
}
