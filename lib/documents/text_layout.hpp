#pragma once
// Whether texts are a stream, joined and cut into rows, or documents, of which each is a sample.
#include <cstdint>
#include <filesystem>
#include <vector>

namespace fsdp {

enum class TextLayout : std::uint8_t {
  automatic,  ///< plain text is a stream; objects and rows of other files are documents
  stream,
  documents
};

/// The layout that --stream and --documents ask for. \throws RequestError when both are given
TextLayout asked_layout(bool stream, bool documents);

/// \param wish   automatic: the kind of the files decides
/// \param files  data files, see data_file_kind()
/// \throws RequestError when `wish` is automatic and only some of the files are plain text; as data_file_kind()
bool is_stream(TextLayout wish, const std::vector<std::filesystem::path>& files);

}  // namespace fsdp
