#include "lib/run/metrics.hpp"

#include <fstream>
#include <string>

#include "lib/base/error.hpp"
#include "lib/plot/loss_curve.hpp"

namespace fsdp {

MetricsFile::MetricsFile(const std::filesystem::path& file, std::int64_t resume_step) : path_(file) {
  std::string kept;
  std::ifstream old(file);
  for (std::string line; resume_step >= 0 && std::getline(old, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || record.value("step", std::int64_t{0}) > resume_step) continue;
    kept += line + '\n';
  }
  replace_file(file, kept);
  file_ = File::open_append(file);
}

void MetricsFile::add(const nlohmann::json& record) { file_.write(record.dump() + "\n"); }

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
      curve.eval_step.push_back(record["step"].get<double>());
      curve.eval_loss.push_back(record["val_loss"].get<double>());
    }
  }
  if (curve.step.empty()) return;
  replace_file(directory / "loss.svg", loss_curve_svg(curve));
  replace_file(directory / "loss.png", loss_curve_png(curve));
}

}  // namespace fsdp
