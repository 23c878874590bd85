#pragma once
// The runs of a --sweep, one after the other in one job.
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "apps/finetune/reports/job_events.hpp"
#include "apps/finetune/sweep/sweep_plan.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Checks all combinations as --dry-run does, then trains those that are not done yet, and compares them. A run that
/// was stopped goes on from its checkpoint; one that was killed or failed before comes after the others. Collective.
/// \param failed_alike  called by a rank whose run failed: true on every rank if the run failed on each of them, so
///                      that the next one can begin
/// \param events        hears of the sweep as a whole
/// \param report        receives the comparison that --json prints (rank 0)
/// \return ok; failed where a run failed; stopped_early where a run was stopped
/// \throws Error subclasses before the first run, and where a run failed on some ranks alone
ExitCode run_sweep(const SweepPlan& plan, ProcessGroup& world, const Logger& log,
                   const std::function<bool()>& failed_alike, JobEvents& events, nlohmann::json& report);

}  // namespace fsdp
