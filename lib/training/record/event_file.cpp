// The few messages are written field by field: LibTorch exports symbols of a protobuf of its own, which a second one in
// the same process would meet.
#include "lib/training/record/event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/files/output_file.hpp"
#include "lib/reports/runs/step_report.hpp"

namespace fsdp {
namespace {

/// A protobuf message as it grows.
class Message {
 public:
  Message& number(int field, std::uint64_t value) {
    varint(static_cast<std::uint64_t>(field) << 3U);
    varint(value);
    return *this;
  }
  Message& real(int field, double value) { return fixed(field, 1, std::bit_cast<std::uint64_t>(value), 8); }
  Message& single(int field, float value) { return fixed(field, 5, std::bit_cast<std::uint32_t>(value), 4); }
  Message& bytes(int field, std::string_view value) {
    varint(static_cast<std::uint64_t>(field) << 3U | 2U);
    varint(value.size());
    text_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.text_); }
  const std::string& text() const { return text_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) text_ += static_cast<char>(value | 0x80U);
    text_ += static_cast<char>(value);
  }
  Message& fixed(int field, unsigned type, std::uint64_t value, int size_bytes) {
    varint(static_cast<std::uint64_t>(field) << 3U | type);
    for (int i = 0; i < size_bytes; ++i) text_ += static_cast<char>(value >> (8U * static_cast<unsigned>(i)));
    return *this;
  }
  std::string text_;
};

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

Message event(std::int64_t step) {
  Message message;
  message.real(1, now());
  if (step != 0) message.number(2, static_cast<std::uint64_t>(step));
  return message;
}

constexpr int kFileVersion = 3, kSummary = 5, kSessionLog = 7, kSourceMetadata = 10;

std::string little_endian(std::uint64_t value, int size_bytes) {
  std::string text;
  for (int i = 0; i < size_bytes; ++i) text += static_cast<char>(value >> (8U * static_cast<unsigned>(i)));
  return text;
}

/// Length and data, each with its checksum.
std::string record_of(const std::string& data) {
  const auto length = little_endian(data.size(), 8);
  return length + little_endian(detail::masked_crc32c(length), 4) + data +
         little_endian(detail::masked_crc32c(data), 4);
}

/// "validation/loss" of a set with a name is "validation/NAME/loss".
std::string tag_of(std::string_view tag, const std::string& set) {
  constexpr std::string_view kValidation = "validation/";
  if (set.empty() || !tag.starts_with(kValidation)) return std::string(tag);
  return fmt::format("{}{}/{}", kValidation, set, tag.substr(kValidation.size()));
}

constexpr std::string_view kNameBegin = "events.out.tfevents.";
constexpr std::int64_t kMostSeconds = 9'999'999'999;  // ten digits

/// The time in the name of an event file, in seconds since 1970; 0 if there is none of ten digits.
std::int64_t time_in(const std::filesystem::path& file) {
  const auto name = file.filename().string();
  const auto digits = name.substr(kNameBegin.size(), name.find('.', kNameBegin.size()) - kNameBegin.size());
  const bool is_time = digits.size() == 10 && digits.find_first_not_of("0123456789") == std::string::npos;
  return is_time ? std::stoll(digits) : 0;
}

/// The name of a new file, which comes after those of all files in the folder: TensorBoard reads the files in the order
/// of their names, and takes no points of one that comes before the file that it reads. The clock may have been set
/// back, and two jobs may begin within a second.
std::filesystem::path new_name(const std::filesystem::path& directory) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  auto seconds = static_cast<std::int64_t>(now());
  for (const auto& file : EventFile::in(directory)) seconds = std::max(seconds, time_in(file) + 1);
  seconds = std::min(seconds, kMostSeconds);
  for (int counter = 0;; ++counter) {
    auto name = directory / fmt::format("{}{:010}.{}.{}.{}", kNameBegin, seconds, host.data(), ::getpid(), counter);
    std::error_code error;
    if (!std::filesystem::exists(name, error)) return name;
  }
}

}  // namespace

std::uint32_t detail::masked_crc32c(std::string_view data) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < made.size(); ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1U ^ (value % 2 != 0 ? 0x82F63B78U : 0U);
      made[i] = value;
    }
    return made;
  }();
  std::uint32_t crc = ~0U;
  for (const char c : data) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFFU] ^ crc >> 8U;
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

EventFile::EventFile(const std::filesystem::path& directory, std::int64_t resume_step, const Logger& log)
    : path_(new_name(directory)), log_(log) {
  constexpr const char* kVersion = "brain.Event:2";
  Message writer;
  writer.bytes(1, "fsdp-finetune");
  const auto first = event(0).bytes(kFileVersion, kVersion).message(kSourceMetadata, writer).text();
  header_ = record_of(first);
  write(first);
  // All earlier points from this step on are hidden, but for the first session that is seen, which is no restart:
  // plugin_event_accumulator.py, _CheckForRestartAndMaybePurge.
  constexpr std::uint64_t kStart = 1;
  if (resume_step >= 0) write(event(resume_step + 1).bytes(kFileVersion, kVersion).text());
  Message session;
  session.number(1, kStart);
  write(event(std::max<std::int64_t>(0, resume_step + 1)).message(kSessionLog, session).text());
}

EventFile::~EventFile() {
  if (!waiting_.empty()) write({});
  if (!waiting_.empty()) log_.warning(path_.string() + ": the last points could not be written");
}

void EventFile::write(const std::string& event) {
  if (!event.empty()) waiting_ += record_of(event);
  try {
    leave_removed_file();
    if (!file_.is_open()) file_ = File::create_new(path_);
    // Writes at a fixed offset, so an incomplete record from a crash is overwritten.
    file_.write_at(size_bytes_, std::as_bytes(std::span(waiting_.data(), waiting_.size())));
    size_bytes_ += waiting_.size();
    waiting_.clear();
    warned_ = false;
  } catch (const std::exception& error) {
    if (!warned_) log_.warning(fmt::format("{}; training goes on, TensorBoard's points wait in memory", error.what()));
    warned_ = true;
    cut_torn_record();
  }
}

void EventFile::leave_removed_file() {
  if (!file_.is_open() || keeps_its_name(file_)) return;
  const auto removed = std::exchange(path_, new_name(path_.parent_path()));
  file_ = File();
  size_bytes_ = 0;
  waiting_.insert(0, header_);
  log_.warning(fmt::format("{}: was removed or replaced while the run wrote to it; TensorBoard's next points go to {}",
                           removed.string(), path_.filename().string()));
}

/// A torn record would hide all that come after it.
void EventFile::cut_torn_record() {
  try {
    if (file_.is_open()) return file_.truncate(size_bytes_);
  } catch (const std::exception&) {
    file_ = File();
    size_bytes_ = 0;
    waiting_.insert(0, header_);
  }
  path_ = new_name(path_.parent_path());  // the name may be taken by now
}

void EventFile::add(const nlohmann::json& record) {
  const auto set = record.value("val_set", std::string());
  Message summary;
  bool any = false;
  const auto add_value = [&](const nlohmann::json& values, std::string_view key, std::string_view tag) {
    const auto found = values.find(key);
    if (tag.empty() || found == values.end() || !found->is_number()) return;
    Message value;
    summary.message(1, value.bytes(1, tag_of(tag, set)).single(2, found->get<float>()));
    any = true;
  };
  for (const auto& metric : kStepMetrics) add_value(record, metric.key, metric.tag);
  for (const auto& metric : kEvalMetrics) add_value(record, metric.key, metric.tag);
  if (const auto ranks = record.find(kRanksKey); ranks != record.end())
    add_value(*ranks, kWaitShareKey, "train/wait_share");
  for (const auto& [key, tag] : {std::pair(kMeansKey, kMeansTag), std::pair(kValMeansKey, kValMeansTag)}) {
    const auto means = record.find(key);
    if (means == record.end()) continue;
    for (const auto& [name, value] : means->items()) add_value(*means, name, std::string(tag) + name);
  }
  if (const auto sources = record.find(kSourcesKey); sources != record.end()) {
    for (const auto& [name, source] : sources->items()) {
      add_value(source, "loss", std::string(kSourceLossTag) + name);
      add_value(source, "epochs", std::string(kSourceEpochsTag) + name);
    }
  }
  for (const auto* key : {kTasksKey, kSubtasksKey}) {
    const auto tasks = record.find(key);
    if (tasks == record.end()) continue;
    for (const auto& [name, figure] : tasks->items()) {
      auto tag = name;  // one of TensorBoard's groups for each task
      if (const auto dot = tag.find('.'); dot != std::string::npos) tag[dot] = '/';
      add_value(figure, "value", std::string(kTasksTag) + tag);
    }
  }
  if (any) write(event(record.value("step", std::int64_t{0})).message(kSummary, summary).text());
}

void EventFile::add_text(std::string_view tag, std::string_view text, std::int64_t step) {
  constexpr std::uint64_t kString = 7;  // DataType.DT_STRING
  Message dim, shape, tensor, plugin, metadata, value, summary;
  dim.number(1, 1);
  shape.message(2, dim);
  tensor.number(1, kString).message(2, shape).bytes(8, text);
  plugin.bytes(1, "text");
  metadata.message(1, plugin);
  value.bytes(1, std::string(tag) + "/text_summary").message(8, tensor).message(9, metadata);
  summary.message(1, value);
  write(event(step).message(kSummary, summary).text());
}

std::vector<std::filesystem::path> EventFile::in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().filename().string().starts_with(kNameBegin)) files.push_back(entry.path());
  }
  return files;
}

}  // namespace fsdp
