#include "lib/tokenizers/gguf/gguf_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/utf8.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/tokenizers/bpe/metaspace_tokenizer.hpp"
#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/gguf/gguf_pre_tokenizer.hpp"
#include "lib/tokenizers/gguf/vocabulary_for_gguf.hpp"

namespace fsdp {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr std::size_t kMostTokenBytes = 1 << 12;  // merges of a longer one would take the square of its length

nlohmann::json special_step(const std::string& token) { return {{"SpecialToken", {{"id", token}, {"type_id", 0}}}}; }

class GgufTokenizer {
 public:
  explicit GgufTokenizer(const std::filesystem::path& file)
      : metadata_(read_gguf_metadata(file)), root_(metadata_, file.string()) {
    if (root_.get(kTokens).is_null()) root_.fail("has no tokenizer (tokenizer.ggml.tokens)");
    model_ = root_.at("tokenizer.ggml.model").string();
    for (const auto& token : root_.at(kTokens).elements()) tokens_.push_back(token.string());
    if (!root_.get("tokenizer.ggml.token_type").is_null()) {
      for (const auto& type : root_.at("tokenizer.ggml.token_type").elements()) types_.push_back(type.integer());
    } else {
      types_.assign(tokens_.size(), static_cast<std::int64_t>(GgufTokenType::normal));
    }
    check_size("token_type", types_.size());
  }

  nlohmann::json tokenizer_json() const {
    const bool is_byte_level = model_ == "gpt2";
    if (!is_byte_level && model_ != "llama")
      root_.get("tokenizer.ggml.model").fail("is " + shortened(model_) + ", and gpt2 and llama are read");
    auto json = is_byte_level ? byte_level() : byte_fallback();
    json["version"] = "1.0";
    json["truncation"] = json["padding"] = nullptr;
    json["added_tokens"] = added_tokens();
    json["post_processor"] = post_processor(json["post_processor"] == true);
    return json;
  }

  nlohmann::json config() const {
    constexpr std::array<std::pair<const char*, const char*>, 7> marks{{{"bos", "bos"},
                                                                        {"eos", "eos"},
                                                                        {"unknown", "unk"},
                                                                        {"seperator", "sep"},
                                                                        {"padding", "pad"},
                                                                        {"cls", "cls"},
                                                                        {"mask", "mask"}}};
    nlohmann::json json{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    for (const auto& [ggml, name] : marks) {
      const auto id = mark(ggml);
      const bool has_name = id && !is(*id, GgufTokenType::normal) && !is(*id, GgufTokenType::unused);
      const bool is_usual = std::string_view(name) == "bos" || std::string_view(name) == "eos";
      if (has_name || is_usual)
        json[std::string(name) + "_token"] = has_name ? nlohmann::json(tokens_[*id]) : nlohmann::json();
    }
    add_templates(json);
    return json;
  }

 private:
  static std::string shortened(const std::string& text) { return text.substr(0, 60); }
  bool is(std::size_t id, GgufTokenType type) const { return types_[id] == static_cast<std::int64_t>(type); }
  bool is_added(std::size_t id) const {
    return is(id, GgufTokenType::control) || is(id, GgufTokenType::user_defined) || is(id, GgufTokenType::unknown);
  }

  void check_size(const char* key, std::size_t size) const {
    if (size != tokens_.size())
      root_.get("tokenizer.ggml." + std::string(key))
          .fail("has " + std::to_string(size) + " elements for " + std::to_string(tokens_.size()) + " tokens");
  }

  std::optional<std::size_t> mark(const std::string& kind) const {
    const auto value = root_.get("tokenizer.ggml." + kind + "_token_id");
    if (value.is_null()) return std::nullopt;
    const auto id = value.integer();
    if (id < 0 || id >= std::ssize(tokens_)) return std::nullopt;
    return to_index(id);
  }

  /// {token: id} of all ids that have a token.
  nlohmann::json vocabulary() const {
    auto vocab = nlohmann::json::object();
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      const auto type = types_[id];
      if (type < static_cast<std::int64_t>(GgufTokenType::normal) ||
          type > static_cast<std::int64_t>(GgufTokenType::byte))
        root_.get("tokenizer.ggml.token_type")
            .fail("has the type " + std::to_string(type) + " for token " + std::to_string(id) + ", which is not known");
      if (is(id, GgufTokenType::unused)) continue;
      if (tokens_[id].empty() || tokens_[id].size() > kMostTokenBytes)
        root_.get(kTokens).fail("has a token of " + std::to_string(tokens_[id].size()) + " bytes, number " +
                                std::to_string(id));
      if (!vocab.emplace(tokens_[id], id).second)
        root_.get(kTokens).fail("has '" + shortened(tokens_[id]) + "' twice, the second is number " +
                                std::to_string(id));
    }
    return vocab;
  }

  nlohmann::json added_tokens() const {
    auto added = nlohmann::json::array();
    for (std::size_t id = 0; id < tokens_.size(); ++id)
      if (is_added(id))
        added.push_back({{"id", id},
                         {"content", tokens_[id]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", !is(id, GgufTokenType::user_defined)}});
    return added;
  }

  /// \return with "post_processor": whether a text begins with a mark where no key says so
  nlohmann::json byte_level() const {
    const auto pre = root_.at("tokenizer.ggml.pre");
    const auto known = gguf_pre_tokenizer(pre.string());
    if (!known)
      pre.fail("is " + shortened(pre.string()) + ", a way to split texts that is not known here: " + gguf_pre_names());
    auto merges = nlohmann::json::array();
    for (const auto& merge : root_.at("tokenizer.ggml.merges").elements()) {
      const auto& text = merge.string();
      const auto space = text.find(' ');
      if (space == 0 || space == std::string::npos || space + 1 == text.size() || text.rfind(' ') != space)
        merge.fail("is '" + shortened(text) + "', expected two pieces with one space between them");
      merges.push_back({text.substr(0, space), text.substr(space + 1)});
    }
    return {
        {"normalizer", known->normalizer},
        {"pre_tokenizer", known->steps},
        {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", known->ignores_merges},
          {"vocab", vocabulary()},
          {"merges", std::move(merges)}}},
        {"post_processor", known->adds_bos}};
  }

  /// As byte_level().
  nlohmann::json byte_fallback() const {
    const bool prepends = root_.boolean("tokenizer.ggml.add_space_prefix", true);
    const std::string sign(kSpaceSign);
    nlohmann::json normalizer{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", sign}};
    nlohmann::json decoders =
        nlohmann::json::array({{{"type", "Replace"}, {"pattern", {{"String", sign}}}, {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}}});
    if (prepends) {
      normalizer = {{"type", "Sequence"},
                    {"normalizers", nlohmann::json::array({{{"type", "Prepend"}, {"prepend", sign}}, normalizer})}};
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    const auto unknown = std::ranges::find(types_, static_cast<std::int64_t>(GgufTokenType::unknown));
    const auto place = to_index(unknown - types_.begin());
    return {{"normalizer", std::move(normalizer)},
            {"pre_tokenizer", nullptr},
            {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", unknown == types_.end() ? nlohmann::json() : nlohmann::json(tokens_[place])},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", true},
              {"byte_fallback", true},
              {"ignore_merges", false},
              {"vocab", vocabulary()},
              {"merges", merges_of_scores()}}},
            {"post_processor", true}};
  }

  struct Merge {
    std::string_view left, right;
    double score;
    std::size_t left_id, right_id;
  };

  /// The pairs of pieces that make a piece, the piece with the highest score first: llama.cpp joins these first. Of one
  /// piece, in the order of transformers (convert_slow_tokenizer.py, generate_merges).
  nlohmann::json merges_of_scores() const {
    std::vector<double> scores;
    for (const auto& score : root_.at("tokenizer.ggml.scores").elements()) {
      if (!score.json().is_number()) score.fail("is no number");
      scores.push_back(score.json().get<double>());
    }
    check_size("scores", scores.size());
    std::unordered_map<std::string_view, std::size_t> ids;
    for (std::size_t id = 0; id < tokens_.size(); ++id)
      if (is(id, GgufTokenType::normal)) ids.emplace(tokens_[id], id);
    std::vector<Merge> merges;
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (!is(id, GgufTokenType::normal)) continue;
      const std::string_view piece = tokens_[id];
      const auto first = merges.size();
      for (auto at = utf8_character_length(piece); at < piece.size(); at += utf8_character_length(piece.substr(at))) {
        const auto left = ids.find(piece.substr(0, at)), right = ids.find(piece.substr(at));
        if (left != ids.end() && right != ids.end())
          merges.push_back({left->first, right->first, scores[id], left->second, right->second});
      }
      std::sort(iterator_at(merges, first), merges.end(), [](const auto& a, const auto& b) {
        return std::pair(a.left_id, a.right_id) < std::pair(b.left_id, b.right_id);
      });
    }
    std::stable_sort(merges.begin(), merges.end(), [](const auto& a, const auto& b) { return a.score > b.score; });
    auto json = nlohmann::json::array();
    for (const auto& merge : merges) json.push_back({merge.left, merge.right});
    return json;
  }

  nlohmann::json post_processor(bool adds_bos) const {
    auto steps = nlohmann::json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
    auto pair = nlohmann::json::array(
        {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "B"}, {"type_id", 0}}}}});
    auto tokens = nlohmann::json::object();
    const auto add = [&](const char* kind, bool otherwise, bool in_front) {
      const bool adds = root_.boolean("tokenizer.ggml.add_" + std::string(kind) + "_token", otherwise);
      const auto id = mark(kind);
      if (!adds || !id) return;
      const auto& token = tokens_[*id];
      tokens[token] = {
          {"id", token}, {"ids", nlohmann::json::array({*id})}, {"tokens", nlohmann::json::array({token})}};
      for (auto* list : {&steps, &pair}) list->insert(in_front ? list->begin() : list->end(), special_step(token));
    };
    add("bos", adds_bos, true);
    add("eos", false, false);
    if (tokens.empty()) return nullptr;
    return {{"type", "TemplateProcessing"}, {"single", steps}, {"pair", pair}, {"special_tokens", tokens}};
  }

  void add_templates(nlohmann::json& json) const {
    const std::string key = "tokenizer.chat_template";
    const auto usual = root_.get(key), names = root_.get(key + "s");
    if (names.is_null()) {
      if (!usual.is_null()) json["chat_template"] = usual.string();
      return;
    }
    auto& list = json["chat_template"] = nlohmann::json::array();
    if (!usual.is_null()) list.push_back({{"name", "default"}, {"template", usual.string()}});
    for (const auto& name : names.elements())
      list.push_back({{"name", name.string()}, {"template", root_.at(key + "." + name.string()).string()}});
  }

  nlohmann::json metadata_;
  JsonValue root_;
  std::string model_;
  std::vector<std::string> tokens_;
  std::vector<std::int64_t> types_;
};

}  // namespace

bool has_gguf_tokenizer(const std::filesystem::path& file) {
  return is_gguf_file(file) && read_gguf_metadata(file).contains(kTokens);
}

nlohmann::json gguf_tokenizer_json(const std::filesystem::path& file) { return GgufTokenizer(file).tokenizer_json(); }

nlohmann::json gguf_tokenizer_config(const std::filesystem::path& file) { return GgufTokenizer(file).config(); }

std::map<std::string, std::string> gguf_tokenizer_files(const std::filesystem::path& file) {
  const GgufTokenizer tokenizer(file);
  return {{"tokenizer.json", json_text(tokenizer.tokenizer_json(), 2) + "\n"},
          {"tokenizer_config.json", json_text(tokenizer.config(), 2) + "\n"}};
}

}  // namespace fsdp
