#include "lib/files/transform/export_tokenizer.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/text/tokenizer/tokenizer_files.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t limit_bytes = 64u << 20;

std::string of_manifest(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return "";
  const auto text = read_text_file(file, limit_bytes);
  const auto run = parse_json_or_discard(text, file.string());
  const nlohmann::json::json_pointer place("/data/tokenizer");
  return run.is_object() && run.contains(place) && run[place].is_string() ? run[place].get<std::string>() : "";
}

}  // namespace

std::string recorded_tokenizer(const Source& checkpoint) {
  if (!checkpoint.info().directory.empty() && !checkpoint.model_config().is_null()) {
    return of_manifest(checkpoint.info().directory / "run.json");
  }
  for (std::size_t i = 0; i < checkpoint.values().size(); ++i) {
    if (checkpoint.values()[i].name != "run.data.tokenizer") continue;
    const auto loaded = checkpoint.value(i);
    const auto* text = loaded.value->string();
    return text == nullptr ? "" : std::string(text->text);
  }
  return "";
}

ExportTokenizer find_export_tokenizer(const std::string& name, std::int64_t vocab_size) {
  ExportTokenizer found;
  if (name.empty()) {
    found.missing = "none is known";
  } else if (name == "gpt2" && vocab_size != 0 && vocab_size < gpt2_vocab_size) {
    found.missing = fmt::format("the run named gpt2, which has {} ids, the model has {}", gpt2_vocab_size, vocab_size);
  } else if (name == "gpt2") {
    found.files = gpt2_tokenizer_files();
  } else if (tokenizer_kind(name) == TokenizerKind::none) {
    found.missing = fmt::format("the run used that of {}, where there is none now", name);
  } else {
    found.directory = name;
  }
  return found;
}

}  // namespace fsdp
