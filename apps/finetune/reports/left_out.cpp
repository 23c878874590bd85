#include "apps/finetune/reports/left_out.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp::detail {
namespace {

struct LeftOut {
  explicit LeftOut(const TokenLoader& rows)
      : ids(rows.num_ids(rows.num_records())), left_out(rows.ids_left_out(rows.num_records())) {}
  std::int64_t ids, left_out;
};

/// "83,763 of 289,404 ids (28.9 %) are not trained on: of each text the first 64 count"
std::string words(const TokenLoader& rows, const LeftOut& found, const char* read) {
  const auto why = rows.is_stream() ? std::string("the last ones, which fill no row")
                                    : fmt::format("of each {} the first {} count",
                                                  rows.has_documents() ? "text" : "row", rows.longest_sequence() + 1);
  return fmt::format("{} of {} ids ({:.1f} %) are not {}: {}", format_count(found.left_out), format_count(found.ids),
                     100.0 * static_cast<double>(found.left_out) / static_cast<double>(found.ids), read, why);
}

std::vector<const TrainingSource*> all_sources(const RunSetup& setup) {
  std::vector<const TrainingSource*> all;
  if (!setup.train_data) return all;
  for (const auto& source : setup.train_data->sources()) all.push_back(&source);
  return all;
}

/// The rows of the source from which a set of --val-split was taken; null: the job does not train.
const TokenLoader* trained_on(const RunSetup& setup, const std::string& name) {
  for (const auto* source : all_sources(setup)) {
    if (name.empty() || source->name == name) return &source->rows;
  }
  return nullptr;
}

constexpr const char* kTrained = "trained on";
constexpr const char* kValidated = "validated on";

}  // namespace

void refuse_most_left_out(const RunSetup& setup, const TokenLoader& rows, const std::string& option,
                          const std::string& data, bool takes_beginnings) {
  const LeftOut found(rows);
  // A --seq-len that is shorter than the rows of a token file was given to shorten them.
  const bool is_asked = takes_beginnings || (!rows.has_documents() && setup.options.model.seq_len > 0);
  if (2 * found.left_out <= found.ids || is_asked) return;
  const auto ids = rows.longest_sequence() + 1;
  std::string cures;
  if (rows.has_documents() && !rows.has_loss_mask()) {  // rows of joined conversations would cut them elsewhere
    cures = rows.tokens().file() == data
                ? fmt::format("encode the texts with fsdp-download tokens --stream --seq-len {}, ", ids)
                : std::string("give --stream, which joins the texts and cuts them into rows, ");
  }
  if (ids < setup.config.block_size)
    cures += fmt::format("give a longer --seq-len (up to {}), ", setup.config.block_size);
  throw FormatError(fmt::format("{} {}: {}; {}{}--documents, which says that the beginnings are enough", option, data,
                                words(rows, found, option == "--train-data" ? kTrained : kValidated), cures,
                                cures.empty() ? "give " : "or "));
}

void log_left_out(const RunSetup& setup, const Logger& log) {
  if (setup.options.val_split > 0) {
    const auto part = [](const TokenLoader& rows) {
      const auto count = rows.num_records();
      return format_count_of(count, rows.has_documents() ? "text" : "row") + ", " +
             format_count_of(rows.num_ids(count), "id");
    };
    for (std::size_t i = 0; i < setup.options.sources.size(); ++i) {
      const auto& [name, held_out] = setup.validation[i];
      const auto* trained = trained_on(setup, name);
      log.info(fmt::format("split     {}{}to validate on: {}{}", name.empty() ? "" : name + ": ",
                           trained != nullptr ? "to train on: " + part(*trained) + "   " : "", part(held_out),
                           held_out.is_stream() ? ", the end of the text: if it is of another kind, its loss says "
                                                  "little about the rest"
                                                : ""));
    }
  }
  const auto tell = [&](const TokenLoader& rows, const char* read, const std::string& set) {
    if (const LeftOut found(rows); found.left_out > 0) log.info("cut       " + set + words(rows, found, read));
  };
  for (const auto* source : all_sources(setup))
    tell(source->rows, kTrained, setup.train_data->is_mixture() ? source->name + ": " : "");
  for (const auto& [name, rows] : setup.validation) tell(rows, kValidated, name.empty() ? "" : name + ": ");
}

void report_left_out(const RunSetup& setup, nlohmann::json& report) {
  if (setup.options.val_split > 0) {
    const auto part = [](const TokenLoader& rows) {
      const auto count = rows.num_records();
      return nlohmann::json{{rows.has_documents() ? "texts" : "rows", count}, {"ids", rows.num_ids(count)}};
    };
    auto& split = report["val_split"] = {{"share", setup.options.val_split}};
    for (std::size_t i = 0; i < setup.options.sources.size(); ++i) {
      const auto& [name, held_out] = setup.validation[i];
      auto& place = name.empty() ? split : split[name];
      if (const auto* trained = trained_on(setup, name)) place["train"] = part(*trained);
      place["validation"] = part(held_out);
    }
  }
  const auto left_out = [](const TokenLoader& rows) { return rows.ids_left_out(rows.num_records()); };
  if (setup.train_data) report["ids_not_trained_on"] = setup.train_data->ids_left_out();
  for (const auto& [name, rows] : setup.validation) {
    auto& place = report["ids_not_validated_on"];
    (name.empty() ? place : place[name]) = left_out(rows);
  }
}

}  // namespace fsdp::detail
