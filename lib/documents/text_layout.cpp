#include "lib/documents/text_layout.hpp"

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/documents/documents.hpp"

namespace fsdp {

TextLayout asked_layout(bool stream, bool documents) {
  if (stream && documents)
    throw RequestError("a stream joins texts, and documents are kept each by itself", Remedy::stream_or_documents);
  return stream ? TextLayout::stream : documents ? TextLayout::documents : TextLayout::automatic;
}

bool is_stream(TextLayout wish, const std::vector<std::filesystem::path>& files) {
  if (wish != TextLayout::automatic) return wish == TextLayout::stream;
  bool stream = false;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto kind = data_file_kind(files[i]);
    const bool is_plain = kind == DataFileKind::text;
    if (i == 0) stream = is_plain;
    if (is_plain == stream) continue;
    throw RequestError(files[i].string() + ": is " + name_of(kind) + ", and " + files.front().string() + " is " +
                           name_of(data_file_kind(files.front())) +
                           ": plain text is a stream, which is cut into rows, and the others hold documents",
                       Remedy::one_kind_of_files);
  }
  return stream;
}

}  // namespace fsdp
