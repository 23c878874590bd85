#include "lib/training/data/mixture_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kHashedRecords = 64, kHashedIds = 4096;

/// Share of each weight in their sum, in lowest terms, so that 7 and 3 are 70 and 30.
std::vector<std::int64_t> lowest_terms(std::vector<std::int64_t> weights) {
  std::int64_t divisor = 0;
  for (const auto weight : weights) divisor = std::gcd(divisor, weight);
  for (auto& weight : weights) weight /= std::max<std::int64_t>(1, divisor);
  return weights;
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
    return was.records == is.rows.num_records() && was.content == content_of(is.rows, was.records);
  });
  return found;
}

/// Refuses rows that are not those that were read.
void check_rows(const SavedSource& was, const TrainingSource& is) {
  if (was.place.rows.samples == 0) return;
  const auto& file = is.rows.tokens().file();
  const auto records = is.rows.num_records();
  const std::string cure =
      "; give the data as they were, or name them NAME=PATH with another name, which begins them at their first row";
  if (records < was.records) {
    throw RequestError(
        fmt::format("the source {} ({}) has {} rows, and had {} when the checkpoint's run had read {} of "
                    "its samples: rows that were read are no longer there{}",
                    is.name, file.string(), records, was.records, was.place.rows.samples, cure));
  }
  if (was.content != content_of(is.rows, was.records)) {
    throw RequestError(
        fmt::format("the source {} ({}) holds other rows than when the checkpoint's run had read {} of "
                    "its samples: some would come again, and others not at all{}",
                    is.name, file.string(), was.place.rows.samples, cure));
  }
  if (is.rows.num_rows() != was.rows && (is.rows.is_packed() || is.rows.is_stream() || is.rows.num_rows() < was.rows)) {
    throw RequestError(
        fmt::format("the source {} ({}) makes {} rows, and made {} when the checkpoint's run had read {} "
                    "of its samples: they are packed or cut elsewhere{}",
                    is.name, file.string(), is.rows.num_rows(), was.rows, was.place.rows.samples, cure));
  }
}

}  // namespace

std::string content_of(const TokenLoader& rows, std::int64_t records) {
  std::uint64_t hash = splitmix64(static_cast<std::uint64_t>(records));
  const auto add = [&](std::int64_t value) { hash = splitmix64(hash ^ static_cast<std::uint64_t>(value)); };
  const auto chosen = std::min(records, kHashedRecords);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < chosen; ++i) {
    // Evenly spread, from the first to the last.
    const auto record = chosen == records ? i : i * ((records - 1) / (chosen - 1));
    const auto length = rows.tokens().length(record);
    add(length);
    ids.resize(static_cast<std::size_t>(std::min(length, kHashedIds)));
    rows.tokens().read(record, ids);
    for (const auto id : ids) add(id);
  }
  return fmt::format("{:016x}", hash);
}

SavedMixture save_mixture(const TrainingData& data, std::int64_t position, const std::vector<std::string>& contents,
                          const std::vector<SavedSource>& resting) {
  SavedMixture mixture{data.end(), {}};
  const auto places = data.places(position);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& source = data.sources()[i];
    mixture.sources.push_back(
        {source.name, contents[i], source.rows.num_records(), source.rows.num_rows(), source.weight, places[i]});
  }
  mixture.sources.insert(mixture.sources.end(), resting.begin(), resting.end());
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
  std::vector<bool> is_used(saved.sources.size(), false);
  bool same_sources = saved.end == end;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    auto& source = sources[i];
    if (!found[i]) {
      same_sources = false;
      result.changes.push_back(fmt::format("{} is new and begins at its first row", source.name));
      continue;
    }
    const auto& was = saved.sources[*found[i]];
    is_used[*found[i]] = true;
    check_rows(was, source);
    if (was.name != source.name)
      result.changes.push_back(fmt::format("{} is {}, whose rows it has", source.name, was.name));
    if (const auto more = source.rows.num_rows() - was.rows; more > 0 && was.place.rows.samples > 0)
      result.changes.push_back(
          fmt::format("{} has {} more, with which its present epoch ends", source.name, format_count_of(more, "row")));
    source.place = was.place;
  }
  // The same weights in another order are the same mixture.
  std::vector<std::int64_t> was, is;
  std::vector<std::size_t> order;
  for (std::size_t s = 0; s < saved.sources.size(); ++s) {
    const auto at = std::ranges::find(found, std::optional(s));
    if (at == found.end()) {
      if (saved.sources[s].weight > 0) {
        same_sources = false;
        result.changes.push_back(fmt::format("{} rests", saved.sources[s].name));
      }
      result.resting.push_back(saved.sources[s]);
      result.resting.back().weight = 0;
      result.resting.back().place.in_rule = 0;
      continue;
    }
    order.push_back(static_cast<std::size_t>(at - found.begin()));
    was.push_back(saved.sources[s].weight);
    is.push_back(sources[order.back()].weight);
  }
  result.same_rule = same_sources && lowest_terms(was) == lowest_terms(is);
  if (result.same_rule) {
    std::vector<TrainingSource> sorted;
    for (const auto i : order) sorted.push_back(std::move(sources[i]));
    sources = std::move(sorted);
    return result;
  }
  for (auto& source : sources) source.place.in_rule = 0;
  result.changes.push_back(fmt::format("the shares are {}, and were {}: each source goes on where it stood",
                                       shares(sources), shares(saved.sources)));
  return result;
}

}  // namespace fsdp
