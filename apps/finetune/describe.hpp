#pragma once
// The first lines of a job's log: ranks, model, data.
#include <string>

#include "apps/finetune/run_setup.hpp"

namespace fsdp::detail {

/// How rank 0 multiplies; nodes of several kinds in one job are told, since their sums round apart. Collective.
std::string agree_on_products(ProcessGroup& world, const ModelRuntime& runtime, const Logger& log);

/// \param products  from agree_on_products()
void describe_run(ProcessGroup& world, const RunSetup& setup, ModelRuntime& runtime, const std::string& products,
                  const Logger& log);

}  // namespace fsdp::detail
