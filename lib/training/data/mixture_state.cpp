#include "lib/training/data/mixture_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kHashedRecords = 64, kHashedIds = 4096;

/// The i-th of `count` numbers that are evenly spread from 0 to all - 1. \pre i < count <= all
std::int64_t spread(std::int64_t i, std::int64_t count, std::int64_t all) {
  return count == 1 ? 0 : i * (all - 1) / (count - 1);
}

/// "web 70 %, code 30 %"
template <class Sources>
std::string shares(const Sources& sources) {
  double sum = 0;
  for (const auto& source : sources) sum += static_cast<double>(source.weight);
  std::vector<std::string> words;
  for (const auto& source : sources) {
    if (source.weight > 0)
      words.push_back(fmt::format("{} {:.4g} %", source.name, 100 * static_cast<double>(source.weight) / sum));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

/// The saved source that each source is, by name or else by content; none: it is new.
std::vector<std::optional<std::size_t>> match(const std::vector<SavedSource>& saved,
                                              const std::vector<TrainingSource>& sources) {
  std::vector<std::optional<std::size_t>> found(sources.size());
  std::vector<bool> taken(saved.size(), false);
  const auto take = [&](auto is_it) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      for (std::size_t s = 0; s < saved.size() && !found[i]; ++s) {
        if (taken[s] || !is_it(saved[s], sources[i])) continue;
        found[i] = s;
        taken[s] = true;
      }
    }
  };
  take([](const SavedSource& was, const TrainingSource& is) { return was.name == is.name; });
  take([](const SavedSource& was, const TrainingSource& is) {
    return was.records <= is.rows.num_records() && was.content == content_of(is.rows, was.records);
  });
  return found;
}

/// Refuses rows that are not those that were read.
void check_rows(const SavedSource& was, const TrainingSource& is) {
  const auto records = is.rows.num_records();
  const auto refuse = [&](const std::string& problem, const Advice& advice = {}) {
    throw RequestError(
        fmt::format("the source {} ({}) {} when the checkpoint's run had read {} of its samples; give the data as they "
                    "were, or name them NAME=PATH with a new name, which begins them at their first row",
                    is.name, is.path, problem, was.place.rows.samples),
        advice);
  };
  if (records < was.records)
    refuse(fmt::format("has {} rows, of which some are no longer there: it had {}", records, was.records));
  const bool is_cut = is.rows.is_packed() || is.rows.is_stream();
  if (is_cut && (is.rows.num_rows() != was.rows || records != was.records))
    refuse(fmt::format("makes {} rows, in which texts would be repeated and others left out: it made {}",
                       is.rows.num_rows(), was.rows),
           {Remedy::of_option, "seq-len"});
  if (was.content != content_of(is.rows, was.records))
    refuse("holds other rows, of which some would be repeated and others left out, than");
}

}  // namespace

std::string content_of(const TokenLoader& rows, std::int64_t records) {
  std::uint64_t hash = splitmix64(static_cast<std::uint64_t>(records));
  const auto add = [&](std::int64_t value) { hash = splitmix64(hash ^ static_cast<std::uint64_t>(value)); };
  const auto chosen = std::min(records, kHashedRecords);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < chosen; ++i) {
    const auto record = spread(i, chosen, records);
    const auto length = rows.tokens().length(record);
    add(length);
    ids.resize(static_cast<std::size_t>(std::min(length, kHashedIds)));
    rows.tokens().read(record, ids);
    for (const auto id : ids) add(id);
  }
  if (rows.is_packed()) add(rows.row_tokens());  // documents fill other rows where rows have other lengths
  if (rows.is_packed() && rows.has_preferences()) add(rows.shared_tokens());
  return fmt::format("{:016x}", hash);
}

SavedMixture save_mixture(const TrainingData& data, std::int64_t position, const std::vector<std::string>& contents,
                          const std::vector<SavedSource>& resting) {
  SavedMixture mixture{data.end(), {}};
  const auto places = data.places(position);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& source = data.sources()[i];
    mixture.sources.push_back({source.name, contents[i], source.rows.num_records(), source.rows.num_rows(),
                               source.weight, source.end(), places[i]});
  }
  mixture.sources.insert(mixture.sources.end(), resting.begin(), resting.end());
  std::ranges::sort(mixture.sources, {}, &SavedSource::name);
  return mixture;
}

std::string mixture_to_text(const SavedMixture& mixture) {
  auto sources = Json::array();
  for (const auto& source : mixture.sources) {
    const auto& [rows, in_mixture, in_rule] = source.place;
    sources.push_back({{"name", source.name},
                       {"content", source.content},
                       {"records", source.records},
                       {"rows", source.rows},
                       {"weight", source.weight},
                       {"ends_at", source.end},
                       {"samples", rows.samples},
                       {"epoch", rows.epoch},
                       {"in_epoch", rows.in_epoch},
                       {"epoch_rows", rows.sizes},
                       {"in_mixture", in_mixture},
                       {"in_rule", in_rule}});
  }
  return json_text({{"end", std::string(name_of(kMixEnds, mixture.end))}, {"sources", sources}});
}

SavedMixture mixture_from_text(const Json& text, const std::string& source) {
  SavedMixture mixture;
  try {
    const auto json = parse_json(text.get<std::string>(), source);
    const auto end = find_value(kMixEnds, json.at("end").get<std::string>());
    if (!end) throw FormatError(source + ": the mixture's end is '" + json["end"].get<std::string>() + "'");
    mixture.end = *end;
    for (const auto& entry : json.at("sources")) {
      SavedSource saved;
      saved.name = entry.at("name").get<std::string>();
      saved.content = entry.at("content").get<std::string>();
      saved.records = entry.at("records").get<std::int64_t>();
      saved.rows = entry.at("rows").get<std::int64_t>();
      saved.weight = entry.at("weight").get<std::int64_t>();
      saved.end = entry.at("ends_at").get<std::int64_t>();
      auto& [rows, in_mixture, in_rule] = saved.place;
      rows.samples = entry.at("samples").get<std::int64_t>();
      rows.epoch = entry.at("epoch").get<std::int64_t>();
      rows.in_epoch = entry.at("in_epoch").get<std::int64_t>();
      rows.sizes = entry.at("epoch_rows").get<std::vector<std::int64_t>>();
      in_mixture = entry.at("in_mixture").get<std::int64_t>();
      in_rule = entry.at("in_rule").get<std::int64_t>();
      const auto smallest = std::min({rows.samples, rows.epoch, rows.in_epoch, in_mixture, in_rule, saved.weight});
      const bool rises = std::ranges::adjacent_find(rows.sizes, std::greater_equal<>()) == rows.sizes.end();
      if (smallest < 0 || saved.records < 1 || saved.rows < 1 || rows.sizes.empty() || rows.sizes.front() < 1 ||
          !rises || rows.sizes.back() > saved.rows || rows.in_epoch >= rows.sizes.back() ||
          rows.in_epoch > rows.samples)
        throw FormatError(
            fmt::format("{}: the mixture's source {} stands at a place that cannot be", source, saved.name));
      mixture.sources.push_back(std::move(saved));
    }
  } catch (const Json::exception& error) {
    throw FormatError(fmt::format("{}: the mixture's sources cannot be read: {}", source, error.what()));
  }
  return mixture;
}

ContinuedMixture continue_mixture(const SavedMixture& saved, std::vector<TrainingSource>& sources, MixEnd end) {
  ContinuedMixture result;
  const auto found = match(saved.sources, sources);
  result.same_rule = saved.end == end;
  std::vector<std::int64_t> was_weights, weights;
  std::vector<bool> is_used(saved.sources.size(), false);
  std::size_t before = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    auto& source = sources[i];
    source.place = {};
    if (!found[i]) {
      result.same_rule = false;
      result.changes.push_back(fmt::format("{} is new and begins at its first row", source.name));
      continue;
    }
    const auto& was = saved.sources[*found[i]];
    // The first of sources that are equally due is next.
    if (*found[i] < before) result.same_rule = false;
    before = *found[i];
    is_used[*found[i]] = true;
    was_weights.push_back(was.weight);
    weights.push_back(source.weight);
    if (was.name != source.name)
      result.changes.push_back(fmt::format("{} is {}, whose rows it has", source.name, was.name));
    if (was.place.rows.samples == 0) continue;
    check_rows(was, source);
    source.place = was.place;
    if (const auto more = source.rows.num_rows() - was.rows; more > 0)
      result.changes.push_back(
          fmt::format("{} has {} more, with which its present epoch ends", source.name, format_count_of(more, "row")));
    // With more rows it may give again what it had ended to give.
    const auto has_ended = [&](std::int64_t ends) { return was.place.in_mixture >= ends; };
    if (end == MixEnd::repeat || has_ended(was.end) == has_ended(source.end())) continue;
    result.same_rule = false;
    auto& rows = source.place.rows;
    if (rows.in_epoch > 0 || rows.epoch == 0) continue;
    --rows.epoch;  // which goes on
    rows.in_epoch = was.rows;
    rows.sizes = {was.rows};
  }
  for (std::size_t s = 0; s < saved.sources.size(); ++s) {
    if (is_used[s]) continue;
    if (saved.sources[s].weight > 0) {
      result.same_rule = false;
      result.changes.push_back(fmt::format("{} rests", saved.sources[s].name));
    }
    result.resting.push_back(saved.sources[s]);
    result.resting.back().weight = 0;
    result.resting.back().place.in_rule = 0;
  }
  if (lowest_terms(was_weights) != lowest_terms(weights)) result.same_rule = false;
  if (result.same_rule) return result;
  for (auto& source : sources) source.place.in_rule = 0;
  if (saved.end != end)
    result.changes.push_back(fmt::format("at the end of a source now {}, and before {}", name_of(kMixEnds, end),
                                         name_of(kMixEnds, saved.end)));
  result.changes.push_back(fmt::format("the shares are {}, and were {}: each source goes on where it stood",
                                       shares(sources), shares(saved.sources)));
  return result;
}

}  // namespace fsdp
