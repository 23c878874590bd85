#pragma once
// A vocabulary as llama.cpp keeps it beside a model. Source: llama.cpp, convert_hf_to_gguf.py (get_vocab_base,
// _create_vocab_sentencepiece) and gguf-py, vocab.py (SpecialVocab).
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// Numbers of llama.h (llama_token_type).
enum class GgufTokenType : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };

struct GgufVocabulary {
  std::string model;                ///< "gpt2": byte-level BPE; "llama": BPE over characters with byte fallback
  std::string pre;                  ///< llama.cpp's name of the pre-tokenizer
  std::vector<std::string> tokens;  ///< by id: one for each row of the model's embedding
  std::vector<float> scores;        ///< by id; of "llama" only
  std::vector<std::int32_t> types;  ///< GgufTokenType by id
  std::vector<std::string> merges;  ///< "left right", the first one first; of "gpt2" only
  std::vector<std::pair<std::string, std::uint32_t>> ids;      ///< of marks: "bos", "eos", "unk", "sep", "pad", ...
  std::vector<std::pair<std::string, bool>> adds;              ///< whether "bos", "eos", "sep" go around a text
  std::optional<bool> space_prefix;                            ///< as below, where llama.cpp has to be told
  bool prepends_space = false;                                 ///< whether a text gets a space before it
  std::string remark;                                          ///< for a warning; empty: none
  std::vector<std::pair<std::string, std::string>> templates;  ///< chat templates by name; "default" is the usual one
};

struct GgufVocabularyOptions {
  std::int64_t num_rows = 0;        ///< of the model's embedding; ids without a token become "[PAD7]"
  bool takes_sentencepiece = true;  ///< tokenizer.model, where there is one, rather than tokenizer.json
  std::string pre;                  ///< llama.cpp's name of the pre-tokenizer; empty: from tokenizer.json
};

/// \param directory  with tokenizer.json, tokenizer.model, or vocab.json and merges.txt; empty: GPT-2's own vocabulary
/// \param config     config.json of the model, which may have ids of marks
/// \throws FormatError when the vocabulary is larger than the model; RequestError when llama.cpp has no name for the
/// pre-tokenizer and options.pre has none either; what read_json_vocabulary() and parse_sentencepiece_model() throw
GgufVocabulary make_gguf_vocabulary(const std::filesystem::path& directory, const nlohmann::json& config,
                                    const GgufVocabularyOptions& options);

}  // namespace fsdp
