#pragma once
// Encoded documents in a file, batch by batch, until a token file is made of them.
//
// Each batch: 64-bit numbers of documents, ids and bytes of the places, and the 32-bit CRC (as zlib has it) of these
// and of what follows, in 64 bits; 64-bit lengths of the documents; ids of 2 bytes, or of 4 for vocabularies above
// 65,536; the loss mask, a byte an id, if there is one; the places, each with a zero byte after it. Little-endian.
#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/encoding/encode_pipeline.hpp"

namespace fsdp::detail {

struct BatchFileOptions {
  std::int64_t vocab_size = 0;
  bool masked = false;  ///< not all ids count
  bool places = false;  ///< the places of the documents are kept
};

/// Writes to a hidden sibling, which the destructor removes.
class BatchFileWriter {
 public:
  /// \throws IoError
  BatchFileWriter(std::filesystem::path file, BatchFileOptions options);
  BatchFileWriter(const BatchFileWriter&) = delete;
  BatchFileWriter& operator=(const BatchFileWriter&) = delete;
  ~BatchFileWriter();

  /// Writes the documents of a batch; what it left out is not kept. \throws IoError
  void add(const EncodedBatch& batch);
  /// Gives the file its name. \return its size in bytes. \throws IoError
  std::uint64_t finish();

 private:
  std::filesystem::path file_, temporary_;
  BatchFileOptions options_;
  File handle_;
  std::uint64_t bytes_ = 0;
};

class BatchFileReader {
 public:
  /// \throws IoError
  BatchFileReader(const std::filesystem::path& file, BatchFileOptions options);

  /// Replaces the documents of `batch` by those of the next one. \return false at the end of the file
  /// \throws FormatError naming the file and the byte of a damaged batch; IoError
  bool next(EncodedBatch& batch);

 private:
  [[noreturn]] void fail() const;

  File handle_;
  BatchFileOptions options_;
  std::uint64_t size_, at_ = 0;
};

}  // namespace fsdp::detail
