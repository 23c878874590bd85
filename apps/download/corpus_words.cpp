#include "apps/download/corpus_words.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/reports/plots/length_histogram.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestReport = std::uint64_t{64} << 20;

json examples_to_json(const std::vector<CorpusReport::Example>& examples) {
  auto list = json::array();
  for (const auto& [document, first] : examples) list.push_back({{"document", document}, {"first", first}});
  return list;
}

/// "a.jsonl: line 9 is a.jsonl: line 3; ..."
std::string examples_in_words(const std::vector<CorpusReport::Example>& examples) {
  std::vector<std::string> words;
  for (const auto& [document, first] : examples) words.push_back(fmt::format("{} is {}", document, first));
  return fmt::format("{}", fmt::join(words, "; "));
}

}  // namespace

json corpus_to_json(const CorpusReport& corpus, std::int64_t cut) {
  const auto& lengths = corpus.lengths();
  json report{{"documents", lengths.documents()}, {"ids", lengths.ids()}, {"empty", corpus.empty()}, {"cut", cut}};
  auto& quantiles = report["lengths"] = {{"shortest", lengths.shortest()}, {"longest", lengths.longest()}};
  for (const auto percent : {1, 10, 25, 50, 75, 90, 99})
    quantiles[fmt::format("p{}", percent)] = lengths.quantile(percent / 100.0);
  for (const auto& [from, to, documents] : lengths.bars())
    report["histogram"].push_back({{"from", from}, {"to", to}, {"documents", documents}});
  const auto& copies = corpus.copies();
  report["copies"] = {{"groups", copies.groups},     {"inside", copies.inside},
                      {"between", copies.between},   {"largest_group", copies.largest},
                      {"dropped", corpus.dropped()}, {"examples", examples_to_json(copies.examples)}};
  for (const auto& source : corpus.sources()) {
    report["sources"].push_back({{"file", source.file},
                                 {"documents", source.documents},
                                 {"ids", source.ids},
                                 {"empty", source.empty},
                                 {"copies", source.copies}});
  }
  for (const auto& other : corpus.against()) {
    report["against"].push_back({{"file", other.file},
                                 {"documents", other.documents},
                                 {"found", other.found},
                                 {"examples", examples_to_json(other.examples)}});
  }
  return report;
}

void tell_corpus(const CorpusReport& corpus, std::int64_t cut, bool drops, const Logger& log) {
  const auto& lengths = corpus.lengths();
  log.info(fmt::format("lengths   {} to {} ids, half up to {}, 99 % up to {}; {} empty, {} cut",
                       format_count(lengths.shortest()), format_count(lengths.longest()),
                       format_count(lengths.quantile(0.5)), format_count(lengths.quantile(0.99)),
                       format_count(corpus.empty()), format_count(cut)));
  const auto& copies = corpus.copies();
  if (copies.groups == 0) {
    log.info("copies    none: no two documents have the same ids");
  } else {
    log.warning(fmt::format("{} the ids of an earlier one, {} in the same file and {} in another: {}",
                            format_count_of(copies.inside + copies.between, "document") +
                                (copies.inside + copies.between == 1 ? " has" : " have"),
                            format_count(copies.inside), format_count(copies.between),
                            examples_in_words(copies.examples)));
  }
  for (const auto& other : corpus.against()) {
    if (other.found == 0) {
      log.info(fmt::format("leaks     none of {} is among the {} of {}",
                           format_count_of(lengths.documents(), "document"), format_count(other.documents),
                           other.file));
      continue;
    }
    std::vector<std::string> places;
    for (const auto& example : other.examples) places.push_back(example.document);
    log.warning(fmt::format("{} of {} {} in {}: {}", format_count(other.found),
                            format_count_of(lengths.documents(), "document"), other.found == 1 ? "is" : "are",
                            other.file, fmt::join(places, "; ")));
  }
  if (drops) log.info(fmt::format("left out  {}", format_count_of(corpus.dropped(), "document")));
}

void check_report_file(const std::filesystem::path& file, const std::vector<std::filesystem::path>& others) {
  const auto refuse = [&](const std::string& problem) {
    throw UsageError(fmt::format("--report {}: {}", file.string(), problem));
  };
  std::error_code error;
  if (file.extension() != ".json") refuse("end the name with .json: the picture of lengths lies beside it, as .svg");
  if (file.has_parent_path() && !std::filesystem::is_directory(file.parent_path(), error))
    refuse("there is no such folder");
  auto picture = file;
  picture.replace_extension(".svg");
  for (const auto& other : others) {
    if (other == file || std::filesystem::equivalent(other, file, error) ||
        std::filesystem::equivalent(other, picture, error))
      refuse("is an input or the output: choose another name");
  }
  const bool is_there = std::filesystem::exists(file, error);
  if (is_there) {
    const auto old = std::filesystem::is_regular_file(file, error)
                         ? parse_json_or_discard(read_text_file(file, kLargestReport), file.string())
                         : json(json::value_t::discarded);
    if (!old.is_object() || !old.contains("copies") || !old.contains("histogram"))
      refuse("exists, and is no report: choose another name");
  } else if (std::filesystem::exists(picture, error)) {
    refuse(picture.filename().string() + " lies there, without a report beside it: choose another name");
  }
}

void write_corpus_report(const std::filesystem::path& file, const std::filesystem::path& output,
                         const CorpusReport& corpus, const json& report) {
  replace_file(file, printable_json(report, 1) + "\n");
  std::vector<LengthBar> bars;
  for (const auto& [from, to, documents] : corpus.lengths().bars())
    bars.push_back({from == to ? format_count(from) : format_count(from) + " to " + format_count(to), documents});
  const auto& lengths = corpus.lengths();
  const auto subtitle = fmt::format(
      "{}, {}; half up to {}, 99 % up to {}", format_count_of(lengths.documents(), "document"),
      format_count_of(lengths.ids(), "id"), format_count(lengths.quantile(0.5)), format_count(lengths.quantile(0.99)));
  auto picture = file;
  picture.replace_extension(".svg");
  replace_file(picture, draw_length_histogram(output.filename().string(), subtitle, bars));
}

}  // namespace fsdp
