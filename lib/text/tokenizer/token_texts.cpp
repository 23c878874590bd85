#include "lib/text/tokenizer/token_texts.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/error.hpp"

namespace fsdp {

const std::string& TokenTexts::of(std::int32_t id) const {
  if (id < 0 || id >= size()) {
    throw UsageError("token id " + std::to_string(id) + " is not in the tokenizer's vocabulary of " +
                     std::to_string(size()) + ": was the model trained with another tokenizer?");
  }
  return texts_[static_cast<std::size_t>(id)];
}

void TokenTexts::set(std::int32_t id, std::string text, bool is_optional) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= texts_.size()) texts_.resize(index + 1);
  texts_[index] = std::move(text);
  if (!is_optional) required_ = std::max(required_, std::int64_t{id} + 1);
}

PieceIds::PieceIds(const std::vector<std::string>& pieces) {
  ids_.reserve(pieces.size());
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].empty()) ids_.emplace(pieces[id], static_cast<std::int32_t>(id));
  }
}

std::int32_t PieceIds::find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? kNoId : found->second;
}

}  // namespace fsdp
