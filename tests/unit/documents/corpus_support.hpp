#pragma once
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/documents/documents.hpp"
#include "tests/support/temp_files.hpp"

namespace fsdp::test {

#ifdef FSDP_HAS_PARQUET
inline constexpr bool kNoParquet = false;
#else
inline constexpr bool kNoParquet = true;
#endif

using Texts = std::vector<std::string>;

inline const std::filesystem::path kData = FSDP_TEST_DATA_DIR;

inline Texts read_all(const std::filesystem::path& file, const std::string& field = "") {
  const auto documents = open_documents(file, field);
  Texts texts;
  for (std::string text; documents->next(text);) texts.push_back(text);
  return texts;
}

/// Writes `content` as `name` and reads it.
inline Texts read_content(const TempDir& dir, std::string_view name, std::string_view content,
                          const std::string& field = "") {
  File::create(dir / name).write(content);
  return read_all(dir / name, field);
}

/// The message that reading `content` ends with; it must be a FormatError.
inline std::string refusal(const TempDir& dir, std::string_view name, std::string_view content,
                           const std::string& field = "") {
  try {
    read_content(dir, name, content, field);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace fsdp::test
