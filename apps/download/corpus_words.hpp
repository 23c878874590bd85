#pragma once
// The facts about encoded documents as lines of a log, as JSON and as a picture.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/corpus/corpus_report.hpp"

namespace fsdp {

/// \param cut  documents that were longer than their limit
nlohmann::json corpus_to_json(const CorpusReport& corpus, std::int64_t cut);

void tell_corpus(const CorpusReport& corpus, std::int64_t cut, bool drops, const Logger& log);

/// Checks, before anything is encoded, that a report may be written there: beside an older report, or as a new one.
/// \param others  files that are read or written. \throws UsageError
void check_report_file(const std::filesystem::path& file, const std::vector<std::filesystem::path>& others);

/// Writes FILE and, with the ending .svg, the picture of lengths. \param output  the token file, for its title
/// \throws IoError
void write_corpus_report(const std::filesystem::path& file, const std::filesystem::path& output,
                         const CorpusReport& corpus, const nlohmann::json& json);

}  // namespace fsdp
