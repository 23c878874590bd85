#include "lib/files/read/gather_sums.hpp"

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace fsdp {
namespace {

static_assert(std::is_trivially_copyable_v<ReadSum>);

std::string gather_bytes(ProcessGroup& group, std::span<const ReadSum> mine) {
  std::string all;
  for (const auto& part : group.gather({reinterpret_cast<const char*>(mine.data()), mine.size_bytes()}, 0)) all += part;
  return all;
}

std::vector<ReadSum> sums_of(std::string_view bytes) {
  std::vector<ReadSum> sums(bytes.size() / sizeof(ReadSum));
  if (!sums.empty()) std::memcpy(sums.data(), bytes.data(), bytes.size());
  return sums;
}

}  // namespace

std::vector<ReadSum> gather_sums(ProcessGroup& group, std::span<const ReadSum> mine) {
  return sums_of(gather_bytes(group, mine));
}

std::vector<ReadSum> all_gather_sums(ProcessGroup& group, std::span<const ReadSum> mine) {
  return sums_of(group.broadcast_text(gather_bytes(group, mine), 0));
}

}  // namespace fsdp
