#pragma once
// Opens Parquet files and Arrow streams.
#include <arrow/io/interfaces.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <parquet/arrow/reader.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp::detail {

/// \throws std::runtime_error with Arrow's message
void check(const arrow::Status& status);

template <class T>
T checked(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

/// Opens a Parquet file; reads only its footer. \param batch_rows  rows of a batch that it reads
/// \throws std::exception
std::unique_ptr<parquet::arrow::FileReader> open_parquet_file(const std::string& file, std::int64_t batch_rows);

/// True for an Arrow stream, as datasets.save_to_disk writes it.
bool is_arrow_stream(const std::string& file);

std::shared_ptr<arrow::io::RandomAccessFile> open_input(const std::string& file);

/// Opens an Arrow stream. \param columns  those that are read; empty: all
/// \throws std::runtime_error, also for a file without the mark that ends a stream
std::shared_ptr<arrow::RecordBatchReader> open_stream(const std::string& file,
                                                      std::shared_ptr<arrow::io::RandomAccessFile> input,
                                                      const std::vector<int>& columns = {});

/// Nothing may follow the mark that ends a stream. \param input  of a stream that was read to its end
void check_end(arrow::io::RandomAccessFile& input);

}  // namespace fsdp::detail
