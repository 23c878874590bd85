#pragma once
// Formats the answer for people and programs. Pure functions.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/bf16/verdict.hpp"

namespace fsdp {

/// \return a line for each rank, then lines about the whole job; every line ends with '\n'
std::string bf16_table(const std::vector<RankFacts>& ranks, const JobAnswer& answer);

/// verdict, ranks, all_reduce, inside_nodes, between_nodes, slowest_rank, bad_hosts: see docs/fsdp-bf16check.md.
nlohmann::json bf16_json(const std::vector<RankFacts>& ranks, const JobAnswer& answer);

/// \return the bad hosts in the format of `sbatch --exclude`: comma-separated on one line; empty when there are none
std::string exclude_list(const JobAnswer& answer);

}  // namespace fsdp
