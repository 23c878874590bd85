#pragma once
// Uses a tokenizer as the programs do.
#include <numeric>

#include <nlohmann/json.hpp>

#include "fuzz_support.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/tokenizers/gguf/vocabulary_for_gguf.hpp"

namespace fsdp::fuzz {

/// Opens the directory's tokenizer, encodes and decodes with it, and reads its vocabulary for a GGUF file.
inline void use_tokenizer(const std::filesystem::path& directory) {
  refusal_is_fine([&] {
    GgufVocabularyOptions options;
    options.num_rows = 400;
    try {
      const auto vocabulary = make_gguf_vocabulary(directory, {{"eos_token_id", 2}}, options);
      if (vocabulary.tokens.size() != 400 || vocabulary.types.size() != 400) std::abort();
    } catch (const RequestError&) {  // llama.cpp has no name for the pattern
    }
  });
  refusal_is_fine([&] {
    const auto tokenizer = open_tokenizer(directory.string());
    for (const std::string_view text :
         {"", "Hello, my dog's 12345 apples\n\n  <s> x", " \xE2\x96\x81\xF0\x9F\xA6\x99 \xff\xfe"}) {
      std::vector<std::int32_t> ids;
      try {
        ids = tokenizer->encode_document(text);
      } catch (const RuntimeFailure&) {
        continue;  // the pattern needs too many steps
      }
      for (const auto id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
      }
      tokenizer->decode(ids);
    }
    const auto count = std::min<std::int64_t>(tokenizer->vocab_size(), 512);
    for (std::int32_t id = 0; id < count; ++id) tokenizer->decode_one(id);
    if (tokenizer->infill_ids()) tokenizer->encode_infill("a", "b");
    tokenizer->description();
  });
}

}  // namespace fsdp::fuzz
