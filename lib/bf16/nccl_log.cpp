#include "lib/bf16/nccl_log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

namespace fsdp {
namespace {

/// Shortens a transport: "NET/Socket/0/GDRDMA" -> "NET/Socket", "P2P/CUMEM/read" -> "P2P/CUMEM", "P2P/direct pointer"
/// -> "P2P/direct"
std::string first_two_parts(std::string_view path) {
  path = path.substr(0, path.find_first_of(" \r\n(["));
  const auto slash = path.find('/');
  if (slash == std::string_view::npos) return std::string(path);
  return std::string(path.substr(0, path.find('/', slash + 1)));
}

}  // namespace

namespace detail {

std::string transports_in_log(std::string_view text) {
  std::set<std::string> found;
  std::string network;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    constexpr std::string_view kVia = " via ";
    constexpr std::string_view kNetwork = "Using network ";
    const bool connection =
        line.find(" Channel ") != std::string_view::npos || line.find(" CollNet ") != std::string_view::npos;
    if (const auto at = line.find(kVia); connection && at != std::string_view::npos) {
      found.insert(first_two_parts(line.substr(at + kVia.size())));
    }
    // The name of a plugin may contain spaces: "AWS Libfabric".
    if (const auto at = line.find(kNetwork); at != std::string_view::npos) {
      network = "NET/" + std::string(line.substr(at + kNetwork.size()));
    }
  }
  if (found.empty()) return network;
  return fmt::format("{}", fmt::join(found, " + "));
}

}  // namespace detail

NcclLog::NcclLog(bool collectives) {
  if (std::getenv("NCCL_DEBUG_FILE") != nullptr || std::getenv("NCCL_DEBUG") != nullptr) return;
  std::error_code error;
  const auto folder = std::filesystem::temp_directory_path(error);
  if (error) return;
  file_ = folder / fmt::format("fsdp-nccl-{}-{}.log", ::getuid(), ::getpid());
  ::setenv("NCCL_DEBUG", "INFO", 1);
  ::setenv("NCCL_DEBUG_SUBSYS", collectives ? "INIT,NET,P2P,SHM,COLL" : "INIT,NET,P2P,SHM", 1);
  ::setenv("NCCL_DEBUG_FILE", file_.c_str(), 1);
}

NcclLog::~NcclLog() { remove(); }

void NcclLog::remove() {
  std::error_code ignored;
  if (!file_.empty()) std::filesystem::remove(file_, ignored);
  file_.clear();
}

std::string NcclLog::transport_since() {
  if (file_.empty()) return "";
  std::ifstream stream(file_);
  stream.seekg(static_cast<std::streamoff>(seen_bytes_));
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  seen_bytes_ += text.size();
  return detail::transports_in_log(text);
}

}  // namespace fsdp
