#pragma once
// tokenizer.json files made of the vocabularies that are there.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/tokenizers/sentencepiece/sentencepiece_model.hpp"

namespace fsdp::test {

using Json = nlohmann::json;

/// GPT-2's vocabulary.
inline Json gpt2_json() {
  const std::string data = FSDP_TEST_DATA_DIR "/gpt2/";
  Json merges = Json::array();
  std::string text = read_text_file(data + "merges.txt");
  for (std::size_t begin = text.find('\n') + 1; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    merges.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 50256}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", {{"type", "ByteLevel"}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"merges", std::move(merges)},
            {"vocab", Json::parse(read_text_file(data + "vocab.json"))}}}};
}

/// The merges that a list of pieces means: whatever two pieces make a third, the one with the lower id first.
inline Json merges_of(const std::map<std::string, int>& vocab) {
  std::vector<std::tuple<int, std::size_t, std::size_t, std::string, std::string>> found;
  for (const auto& [piece, id] : vocab) {
    for (std::size_t at = utf8_character_length(piece); at < piece.size();) {
      const std::string left = piece.substr(0, at), right = piece.substr(at);
      if (vocab.contains(left) && vocab.contains(right)) found.emplace_back(id, left.size(), right.size(), left, right);
      at += utf8_character_length(right);
    }
  }
  std::sort(found.begin(), found.end());
  Json merges = Json::array();
  for (const auto& [id, left_size, right_size, left, right] : found) merges.push_back({left, right});
  return merges;
}

/// The fixture's SentencePiece vocabulary as Llama 2's tokenizer.json holds such ones.
inline Json llama_json() {
  const std::string file = FSDP_FIXTURE_DIR "/tokenizers/tokenizer.model";
  std::map<std::string, int> vocab;
  for (const auto& piece : parse_sentencepiece_model(read_text_file(file), file).pieces) {
    vocab.emplace(piece.text, static_cast<int>(vocab.size()));
  }
  Json added = Json::array();
  for (const char* name : {"<unk>", "<s>", "</s>"}) {
    added.push_back({{"id", added.size()}, {"content", name}, {"special", true}, {"normalized", false}});
  }
  const Json prepend{{"type", "Prepend"}, {"prepend", "▁"}};
  const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const Json bos{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {{"added_tokens", std::move(added)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, replace}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", Json::array({bos, text})},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"model", {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocab}, {"merges", merges_of(vocab)}}}};
}

}  // namespace fsdp::test
