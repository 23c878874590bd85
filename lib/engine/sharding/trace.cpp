#include "lib/engine/sharding/trace.hpp"

#include <fmt/format.h>

namespace fsdp {

void TraceRecorder::begin(std::string_view what, std::string_view category) {
  open_.push_back({std::string(what), std::string(category), Clock::now(), {}});
}

void TraceRecorder::end() {
  auto record = std::move(open_.back());
  open_.pop_back();
  if (record.category == "schedule") return;
  record.end = Clock::now();
  records_.push_back(std::move(record));
}

std::string TraceRecorder::events_json(int rank) const {
  const auto microseconds = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
  std::string text =
      fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"rank {}"}}}})", rank, rank);
  for (const auto& record : records_) {
    text += fmt::format(R"(,{}{{"name":"{}","cat":"{}","ph":"X","pid":{},"tid":"{}","ts":{:.1f},"dur":{:.1f}}})", '\n',
                        record.name, record.category, rank, record.category, microseconds(record.begin - origin_),
                        microseconds(record.end - record.begin));
  }
  return text;
}

}  // namespace fsdp
