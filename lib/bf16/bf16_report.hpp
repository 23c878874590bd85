#pragma once
// The answer as people and programs read it. Pure functions.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/bf16/verdict.hpp"

namespace fsdp {

/// A line per rank and what concerns the job, each line ended by '\n'.
std::string bf16_table(const std::vector<RankFacts>& ranks, const JobAnswer& answer);

/// verdict, ranks, all_reduce, inside_nodes, between_nodes, slowest_rank, bad_hosts: see docs/fsdp-bf16check.md.
nlohmann::json bf16_json(const std::vector<RankFacts>& ranks, const JobAnswer& answer);

/// The bad hosts as `sbatch --exclude` takes them: one line, commas between; empty without any.
std::string exclude_list(const JobAnswer& answer);

}  // namespace fsdp
