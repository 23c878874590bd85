#include "lib/files/read/file_set.hpp"

namespace fsdp {

constexpr std::size_t max_open_files = 128;

std::uint32_t FileSet::add(std::filesystem::path path) {
  paths_.push_back(std::move(path));
  open_.emplace_back();
  return static_cast<std::uint32_t>(paths_.size() - 1);
}

std::shared_ptr<const File> FileSet::open(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  auto& file = open_.at(number);
  if (file != nullptr) return file;
  if (order_.size() >= max_open_files) {
    open_[order_.front()].reset();
    order_.pop_front();
  }
  file = std::make_shared<const File>(File::open_read(paths_[number]));
  order_.push_back(number);
  return file;
}

}  // namespace fsdp
