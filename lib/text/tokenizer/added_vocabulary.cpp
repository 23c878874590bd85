#include "lib/text/tokenizer/added_vocabulary.hpp"

#include <algorithm>
#include <map>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

bool same_but_for_id(const AddedToken& a, const AddedToken& b) {
  return a.text == b.text && a.special == b.special && a.normalized == b.normalized && a.single_word == b.single_word &&
         a.lstrip == b.lstrip && a.rstrip == b.rstrip;
}

class AddedVocabulary {
 public:
  explicit AddedVocabulary(const VocabularyPieces& pieces) : pieces_(pieces) {}

  const AddedToken* find(const std::string& name) const {
    const auto id = ids_.find(name);
    return id == ids_.end() ? nullptr : &tokens_.at(id->second);
  }

  /// A name that is added again changes its flags, but a special token stays special.
  /// \param where  the file that writes the id of the token, where it has one
  void add(AddedToken token, const std::string& where) {
    if (token.text.empty()) return;
    const std::int32_t written = token.id;
    token.id = id_of(token);
    if (written != AddedToken::kNoId && written != token.id) {
      throw FormatError(where + ": added token '" + token.text + "' has id " + std::to_string(written) +
                        ", but the tokenizers library gives it " + std::to_string(token.id) + " (the vocabulary has " +
                        std::to_string(pieces_.count) + " pieces): write that id, or fill the ids before it");
    }
    if (const AddedToken* known = find(token.text)) token.special = token.special || known->special;
    ids_[token.text] = token.id;
    tokens_[token.id] = std::move(token);
  }

  std::vector<AddedToken> tokens() const {
    std::vector<AddedToken> all;
    for (const auto& [id, token] : tokens_) all.push_back(token);
    return all;
  }

 private:
  std::int32_t id_of(const AddedToken& token) const {
    if (const AddedToken* known = find(token.text)) return known->id;
    if (const auto piece = pieces_.find(token.text)) return *piece;
    if (pieces_.renames && token.id >= 0 && token.id < pieces_.count) return token.id;
    const std::int64_t next = tokens_.empty() ? 0 : std::int64_t{tokens_.rbegin()->first} + 1;
    return static_cast<std::int32_t>(std::max(next, pieces_.count));
  }

  const VocabularyPieces& pieces_;
  std::map<std::string, std::int32_t> ids_;
  std::map<std::int32_t, AddedToken> tokens_;
};

}  // namespace

std::vector<AddedToken> all_added_tokens(const VocabularyPieces& pieces, const std::vector<AddedToken>& of_file,
                                         const TokenizerConfig& config) {
  AddedVocabulary all(pieces);
  for (const AddedToken& token : of_file) all.add(token, pieces.where);
  const auto is_named = [&](const AddedToken& token) {
    return std::any_of(config.named_tokens.begin(), config.named_tokens.end(),
                       [&](const NamedToken& named) { return named.by_key && named.token.text == token.text; });
  };
  const auto in_file = [&](const AddedToken& token) {
    return std::any_of(of_file.begin(), of_file.end(), [&](const AddedToken& other) { return other.id == token.id; });
  };
  for (AddedToken token : config.added_tokens) {
    const AddedToken* known = all.find(token.text);
    if (known != nullptr && same_but_for_id(*known, token)) continue;
    if (!config.has_decoder && in_file(token)) continue;  // added_tokens.json is older than tokenizer.json
    token.special = token.special || is_named(token);
    all.add(std::move(token), config.where);
  }
  for (const NamedToken& named : config.named_tokens) {
    if (all.find(named.token.text) != nullptr) continue;
    AddedToken token = named.token;
    token.is_optional = true;
    all.add(std::move(token), config.where);
  }
  return all.tokens();
}

}  // namespace fsdp
