#include "lib/training/data/head_targets.hpp"

#include <fmt/format.h>

#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/encoding/labels.hpp"
#include "lib/tokenizers/files/padding.hpp"

namespace fsdp {

namespace {

std::string id_words(std::int64_t id) { return id < 0 ? "no padding" : fmt::format("the padding {}", id); }

}  // namespace

HeadKind head_of(const ModelConfig& config) {
  if (!config.has_scores()) return HeadKind::next_token;
  return config.labels.size() == 1 ? HeadKind::reward : HeadKind::classify;
}

std::int64_t padding_of_texts(const ModelConfig& config, const std::string& tokenizer_name,
                              const Tokenizer* tokenizer) {
  if (config.pad_token_id >= 0) return config.pad_token_id;
  const auto id = tokenizer == nullptr ? std::nullopt : padding_of(tokenizer_name, *tokenizer);
  return id ? static_cast<std::int64_t>(*id) : -1;
}

void check_targets(const TokenLoader& rows, const ModelConfig& config, std::int64_t padding, const std::string& what) {
  const auto& tokens = rows.tokens();
  const auto notes = tokens.notes();
  const auto head = head_of(config);
  const auto wanted = head == HeadKind::next_token ? std::string() : std::string(name_of(kHeadNames, head));
  if (notes.head != wanted) {
    throw RequestError(
        notes.head.empty()
            ? fmt::format("{} has no targets of the head {}: give the texts, or encode them for it", what, wanted)
            : fmt::format("{} was encoded for the head {}", what, notes.head));
  }
  if (head == HeadKind::classify && notes.labels != config.labels)
    throw RequestError(fmt::format("{} has the labels {}, and the model {}", what, list_of_labels(notes.labels),
                                   list_of_labels(config.labels)));
  if (head != HeadKind::next_token && padding >= 0 && notes.padding_id != padding)
    throw RequestError(
        fmt::format("{} was encoded for texts that end before {}, and those of the model end before {}: "
                    "encode it for the model's padding",
                    what, id_words(notes.padding_id), id_words(padding)));
  if (head != HeadKind::classify) return;  // preferences that are too long are left out, and told
  const auto most = rows.longest_sequence() + 1;
  for (std::int64_t i = 0; i < rows.num_records(); ++i) {
    if (tokens.length(i) > most)
      throw FormatError(
          fmt::format("{}: text {} has {} ids with its label, and sequences of {} would lose it: encode the "
                      "texts with a largest length of {}",
                      what, i, tokens.length(i), most, most),
          Remedy::of_seq_len);
  }
}

}  // namespace fsdp
