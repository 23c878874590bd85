#include "lib/formats/arrow/plugin/arrow_files.hpp"

#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <parquet/file_reader.h>

#include <array>
#include <fstream>
#include <string_view>

namespace fsdp::detail {
namespace {

constexpr std::int64_t kRecordBuffer_bytes = 1 << 20;

// Newer versions of Arrow return the reader; older ones store it through an argument.
template <class Builder>
std::unique_ptr<parquet::arrow::FileReader> build(Builder& builder) {
  if constexpr (requires { builder.Build(); }) {
    return checked(builder.Build());
  } else {
    std::unique_ptr<parquet::arrow::FileReader> reader;
    check(builder.Build(&reader));
    return reader;
  }
}

/// Newer versions of Arrow tell columns of JSON from strings where a file has no schema of Arrow, if they are asked to.
template <class Properties>
void read_json_as_such(Properties& properties) {
  if constexpr (requires { properties.set_arrow_extensions_enabled(true); })
    properties.set_arrow_extensions_enabled(true);
}

}  // namespace

void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

std::unique_ptr<parquet::arrow::FileReader> open_parquet_file(const std::string& file, std::int64_t batch_rows) {
  parquet::ReaderProperties pages(arrow::system_memory_pool());
  pages.enable_buffered_stream();
  pages.set_buffer_size(kRecordBuffer_bytes);
  pages.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties batches;
  batches.set_batch_size(batch_rows);
  batches.set_pre_buffer(false);
  batches.set_use_threads(false);
  read_json_as_such(batches);
  parquet::arrow::FileReaderBuilder builder;
  check(builder.OpenFile(file, /*memory_map=*/false, pages));
  builder.memory_pool(arrow::system_memory_pool())->properties(batches);
  return build(builder);
}

bool is_arrow_stream(const std::string& file) {
  std::array<char, 4> head{};
  std::ifstream(file, std::ios::binary).read(head.data(), head.size());
  return std::string_view(head.data(), head.size()) == "\xff\xff\xff\xff";
}

std::shared_ptr<arrow::io::RandomAccessFile> open_input(const std::string& file) {
  return checked(arrow::io::ReadableFile::Open(file, arrow::system_memory_pool()));
}

std::shared_ptr<arrow::RecordBatchReader> open_stream(const std::string& file,
                                                      std::shared_ptr<arrow::io::RandomAccessFile> input,
                                                      const std::vector<int>& columns) {
  // A file that was cut between two batches reads well to its end, but for the mark that ends a stream.
  std::array<char, 8> tail{};
  std::ifstream(file, std::ios::binary).seekg(-8, std::ios::end).read(tail.data(), tail.size());
  if (std::string_view(tail.data(), tail.size()) != std::string_view("\xff\xff\xff\xff\0\0\0\0", 8))
    throw std::runtime_error("is an Arrow stream without its end; was it copied whole?");
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = arrow::system_memory_pool();
  options.use_threads = false;
  options.included_fields = columns;
  return checked(arrow::ipc::RecordBatchStreamReader::Open(std::move(input), options));
}

void check_end(arrow::io::RandomAccessFile& input) {
  const auto end = checked(input.Tell()), size = checked(input.GetSize());
  if (end == size) return;
  throw std::runtime_error("the Arrow stream ends at byte " + std::to_string(end) + " of " + std::to_string(size) +
                           ", and what follows would be left out: a file holds one stream");
}

}  // namespace fsdp::detail
