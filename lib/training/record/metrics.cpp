#include "lib/training/record/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lib/base/files/output_file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/reports/plots/loss_curve.hpp"

namespace fsdp {

MetricsFile::MetricsFile(const std::filesystem::path& file, std::int64_t resume_step, const Logger& log, bool validates)
    : path_(file), log_(log) {
  const auto last = static_cast<double>(resume_step);
  std::error_code error;
  std::ifstream old;
  if (std::filesystem::is_regular_file(file, error)) old.open(file);  // a pipe of that name would block
  for (std::string line; resume_step >= 0 && std::getline(old, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    if (const auto step = record.find("step"); step != record.end() && step->is_number()) {
      const bool again = validates && step->get<double>() == last && record.contains("eval_seconds");
      if (step->get<double>() > last || again) continue;
    }
    kept_ += line + '\n';
  }
  write_waiting();
}

MetricsFile::~MetricsFile() {
  if (whole_ && waiting_.empty()) return;
  write_waiting();
  if (waiting_.empty()) return;
  const auto lines = std::count(waiting_.begin(), waiting_.end(), '\n');
  log_.warning(fmt::format("{}: {} line{} could not be written", path_.string(), lines, lines == 1 ? "" : "s"));
}

void MetricsFile::open() {
  replace_file(path_, kept_);
  file_ = File::open_append(path_);
  size_bytes_ = kept_.size();
  kept_.clear();
  whole_ = true;
}

/// Makes a file again that was removed, without the lines that it had, or adds to another file of that name.
void MetricsFile::open_again() {
  auto file = File::open_append(path_);
  log_.warning(fmt::format("{}: was removed or replaced while the run wrote to it; the next lines are written anew",
                           path_.string()));
  size_bytes_ = file.size_bytes();
  file_ = std::move(file);
}

void MetricsFile::write_waiting() {
  try {
    if (!whole_) open();
    if (waiting_.empty()) return;
    if (!keeps_its_name(file_)) open_again();
    file_.write(waiting_);
    size_bytes_ += waiting_.size();
    waiting_.clear();
    if (warned_) log_.info(fmt::format("{}: there is room again, all lines are written", path_.string()));
    warned_ = false;
  } catch (const std::exception& error) {
    if (!warned_) log_.warning(fmt::format("{}; training goes on, the lines wait in memory", error.what()));
    warned_ = true;
    cut_torn_line();
  }
}

/// A write that came to its end halfway leaves part of a line.
void MetricsFile::cut_torn_line() noexcept {
  try {
    if (whole_) file_.truncate(size_bytes_);
  } catch (const std::exception&) {
    waiting_.insert(0, "\n");  // keeps the torn line apart
  }
}

void MetricsFile::sync() noexcept {
  try {
    if (whole_) file_.sync();
  } catch (const std::exception&) {
    // The checkpoint is worth more than its protocol.
  }
}

void MetricsFile::add(const nlohmann::json& record) {
  waiting_ += printable_json(record) + "\n";
  write_waiting();
}

namespace {

ValidationCurve& validation_of(LossCurve& curve, const std::string& name) {
  for (auto& set : curve.validation) {
    if (set.name == name) return set;
  }
  return curve.validation.emplace_back(ValidationCurve{name, {}, {}});
}

}  // namespace

void draw_loss_curve(const std::filesystem::path& directory, const std::string& title, const std::string& subtitle) {
  LossCurve curve;
  curve.title = title;
  curve.subtitle = subtitle;
  std::ifstream in(directory / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("step")) continue;
    if (record.contains("loss") && record["loss"].is_number()) {
      curve.step.push_back(record["step"].get<double>());
      curve.train_loss.push_back(record["loss"].get<double>());
    }
    if (record.contains("val_loss") && record["val_loss"].is_number()) {
      auto& set = validation_of(curve, record.value("val_set", std::string()));
      set.step.push_back(record["step"].get<double>());
      set.loss.push_back(record["val_loss"].get<double>());
    }
  }
  if (curve.step.empty()) return;
  replace_file(directory / "loss.svg", loss_curve_svg(curve));
}

}  // namespace fsdp
