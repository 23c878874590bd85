#include "apps/finetune/reports/part_timer.hpp"

#include <cstddef>

namespace fsdp::detail {

void PartTimer::begin(std::string_view what, std::string_view category) {
  if (open_.empty()) {
    if (what == "read tokens") parts_.fill(0);  // a step begins with reading its tokens
    since_ = Clock::now();
  } else {
    book();
  }
  open_.push_back(part_of(what, category, open_.empty() ? StepPart::other : open_.back()));
}

void PartTimer::end() {
  book();
  open_.pop_back();
}

void PartTimer::book() {
  const auto now = Clock::now();
  parts_[static_cast<std::size_t>(open_.back())] += std::chrono::duration<double>(now - since_).count();
  since_ = now;
}

}  // namespace fsdp::detail
