#include "lib/tokenizers/bpe/append_by_names.hpp"

#include "lib/base/types/index.hpp"

namespace fsdp::detail {

void append_by_names(const TokenNames& names, std::string_view text, const PlainTest& is_plain, AlignedIds& out,
                     const AppendPart& append_part) {
  for (const TextSegment& segment : names.split(text, is_plain)) {
    const auto begin = to_index(segment.text.data() - text.data());
    if (segment.id == TextSegment::kPlain) {
      append_part(segment.text, begin);
    } else {
      out.ids.push_back(segment.id);
      out.parts.push_back({begin, begin + segment.text.size()});
    }
  }
}

}  // namespace fsdp::detail
