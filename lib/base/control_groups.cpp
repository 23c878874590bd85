#include "lib/base/control_groups.hpp"

#include <fstream>
#include <sstream>

namespace fsdp::detail {
namespace {

/// A hierarchy of control groups: its mount point, and the group that is seen there. A container sees its own group at
/// the mount point, while /proc/self/cgroup may still count from the host's root.
struct Hierarchy {
  std::filesystem::path mount_point;
  std::string top = "/";

  /// The path of a group below the mount point. \param group  as /proc/self/cgroup names it
  std::filesystem::path below(const std::string& group) const {
    if (top != "/" && group.starts_with(top) && (group.size() == top.size() || group[top.size()] == '/')) {
      return std::filesystem::path(group.substr(top.size())).relative_path();
    }
    return std::filesystem::path(group).relative_path();
  }
};

/// By proc(5), mountinfo: ID PARENT DEVICE ROOT MOUNT-POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS. Else where
/// it usually is.
/// \param controller  of version 1; "" is the unified hierarchy
Hierarchy find_hierarchy(const std::filesystem::path& proc, const std::filesystem::path& cgroup,
                         const std::string& controller) {
  std::ifstream mounts(proc / "self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string id, parent, device, root, point, type, source, options;
    before >> id >> parent >> device >> root >> point;
    after >> type >> source >> options;
    const bool found = controller.empty() ? type == "cgroup2"
                                          : type == "cgroup" &&
                                                ("," + options + ",").find("," + controller + ",") != std::string::npos;
    if (found && !point.empty()) return {point, root};
  }
  return {controller.empty() ? cgroup : cgroup / controller};
}

}  // namespace

std::vector<std::filesystem::path> control_groups(const std::string& controller, const std::filesystem::path& proc,
                                                  const std::filesystem::path& cgroup) {
  std::vector<std::filesystem::path> folders;
  std::ifstream groups(proc / "self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:GROUP
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    const auto hierarchy = find_hierarchy(proc, cgroup, unified ? "" : controller);
    for (auto place = hierarchy.below(line.substr(second + 1));; place = place.parent_path()) {
      folders.push_back(hierarchy.mount_point / place);
      if (place.empty()) break;
    }
  }
  return folders;
}

}  // namespace fsdp::detail
