#pragma once
// A simulated process group: one rank of a job whose other ranks do not exist.
#include <functional>
#include <memory>

#include "lib/base/types/work.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct FakeJob {
  int ranks = 1;
  int ranks_per_node = 1;  ///< the last node may have fewer
  int rank = 0;            ///< the simulated rank
};

/// The job's world group as seen by its rank. No data is sent: transfers complete at once and leave buffers unchanged,
/// peer memory has addresses that must not be accessed, and waits for other ranks return at once.
/// \param rehearsal  the collective code that will run on the world first, such as the creation of the mesh. It is run
///                   once for every rank beforehand, so that splits and reductions have the results of the whole job.
///                   Later reductions use this rank's value for every rank.
/// \param work       log that receives the transfers; may be null
/// \throws RequestError when `job` is inconsistent
std::unique_ptr<ProcessGroup> make_fake_world(const FakeJob& job, const std::function<void(ProcessGroup&)>& rehearsal,
                                              std::shared_ptr<WorkLog> work = nullptr);

/// Placement of a group on the nodes of its job. A group that is not simulated counts as being on one node.
TransferWork placement_of(const ProcessGroup& group);

/// Like make_fake_world(), but with real memory, so that one rank can measure its memory use in a larger job. Data from
/// other ranks is zeros.
std::unique_ptr<ProcessGroup> make_lone_rank(const FakeJob& job, const std::function<void(ProcessGroup&)>& rehearsal);

}  // namespace fsdp
