#pragma once
// Token files that tests write, and the ids of micro-batches.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/token_files/token_file_writer.hpp"

namespace fsdp::test {

using Ids = std::vector<std::int32_t>;

inline Ids ids_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int32_t>(), tensor.const_data_ptr<std::int32_t>() + tensor.numel()};
}

inline TokenFileNotes notes() {
  TokenFileNotes notes;
  notes.vocab_size = 1000;
  return notes;
}

inline std::filesystem::path write_documents(const std::filesystem::path& file, const std::vector<Ids>& documents) {
  const auto writer = write_token_documents(file, notes());
  for (const auto& document : documents) writer->add(document);
  writer->finish();
  return file;
}

inline std::filesystem::path write_rows(const std::filesystem::path& file, std::int64_t length, const Ids& ids) {
  const auto writer = write_packed_rows(file, length, notes());
  writer->add(ids);
  writer->finish();
  return file;
}

}  // namespace fsdp::test
