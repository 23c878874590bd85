#include "lib/fsdp/trace.hpp"

#include <fmt/format.h>

namespace fsdp {

void TraceRecorder::add(std::string name, std::string_view category, Clock::time_point begin, Clock::time_point end) {
  records_.push_back({std::move(name), category, begin, end});
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
