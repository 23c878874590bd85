#pragma once
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// The texts of all ranks, by rank, on every rank. Collective. \param text  without zero bytes
inline std::vector<std::string> texts_of_ranks(ProcessGroup& group, std::string_view text) {
  std::string all;
  for (const auto& one : group.gather(text, 0)) (all += one) += '\0';
  std::istringstream joined(group.broadcast_text(all, 0));
  std::vector<std::string> texts;
  for (std::string one; std::getline(joined, one, '\0');) texts.push_back(one);
  return texts;
}

}  // namespace fsdp
