#include "lib/engine/runtime/sharding_options.hpp"

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {
constexpr std::string_view kNvme = "nvme:";
}  // namespace

OffloadConfig parse_offload(std::string_view text, std::string_view option) {
  if (text == "none") return {};
  if (text == "cpu") return {OffloadConfig::Place::cpu, "", 0};
  if (text.starts_with(kNvme) && text.size() > kNvme.size())
    return {OffloadConfig::Place::nvme, std::string(text.substr(kNvme.size())), 0};
  throw RequestError(std::string(option) + " is '" + std::string(text) + "', choose from " + kOffloadChoices);
}

std::string to_string(const OffloadConfig& offload) {
  switch (offload.place) {
    case OffloadConfig::Place::nvme:
      return std::string(kNvme) + offload.directory;
    case OffloadConfig::Place::cpu:
      return "cpu";
    case OffloadConfig::Place::device:
      break;
  }
  return "none";
}

}  // namespace fsdp
