#pragma once
// The sources of a run in a checkpoint, and how a run goes on with others.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/training/data/training_data.hpp"

namespace fsdp {

/// A source as a checkpoint keeps it. Sources are known by name, and those that were renamed by what they hold.
struct SavedSource {
  std::string name;
  std::string content;       ///< content_of() of its first `records` records
  std::int64_t records = 0;  ///< rows or documents that it had
  std::int64_t rows = 0;     ///< rows of its order: fewer than records where documents are packed
  std::int64_t weight = 0;   ///< 0: it rests
  std::int64_t end = 1;      ///< TrainingSource::end()
  SourcePlace place;
};

struct SavedMixture {
  MixEnd end = MixEnd::repeat;
  std::vector<SavedSource> sources;
};

/// A hash of the lengths and ids of the first and the last of the first `records` records, and of 62 between; of all
/// where they are fewer. Of packed documents also of the length of rows.
std::string content_of(const TokenLoader& rows, std::int64_t records);

/// The mixture at a position, with the sources of `resting` that take no part.
/// \param contents  content_of() of each source
SavedMixture save_mixture(const TrainingData& data, std::int64_t position, const std::vector<std::string>& contents,
                          const std::vector<SavedSource>& resting);
/// JSON as a text, because a checkpoint's values outlive conversions only as numbers and texts.
std::string mixture_to_text(const SavedMixture& mixture);
/// \param text  a string. \throws FormatError naming `source` and what is missing or wrong
SavedMixture mixture_from_text(const nlohmann::json& text, const std::string& source);

/// How a run goes on.
struct ContinuedMixture {
  std::vector<SavedSource> resting;  ///< sources of the checkpoint that are not among those of this job
  bool same_rule = true;             ///< the mixture is the checkpoint's
  std::vector<std::string> changes;  ///< sentences for the user
};

/// Takes the places of the sources over from a checkpoint.
/// \param sources  sorted by name
/// \throws RequestError naming a source whose rows before its place are others, or fewer, than when they were read
ContinuedMixture continue_mixture(const SavedMixture& saved, std::vector<TrainingSource>& sources, MixEnd end);

}  // namespace fsdp
