#pragma once
// One rank of a job that does not run: agrees with ranks that are not there.
#include <functional>
#include <memory>

#include "lib/base/work.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct FakeJob {
  int ranks = 1;
  int ranks_per_node = 1;  ///< the last node may have fewer
  int rank = 0;            ///< which one it is about
};

/// The job's world as its rank sees it. Nothing is sent: transfers end at once and leave buffers as they are, peer
/// memory has addresses that must not be touched, and the others are never late.
/// \param rehearsal  collective code that will run on the world first (making the mesh, say). It is run once for every
///                   rank beforehand, so that splits and agreed values are those of the whole job; later agreements
///                   count this rank's value for all.
/// \param work       where transfers are written down; may be null
/// \throws UsageError when the numbers cannot be
std::unique_ptr<ProcessGroup> make_fake_world(const FakeJob& job, const std::function<void(ProcessGroup&)>& rehearsal,
                                              std::shared_ptr<WorkLog> work = nullptr);

/// How a group of such a world lies on the nodes of its job; of a group of another kind, as if it were on one.
TransferWork place_of(const ProcessGroup& group);

/// The same with memory that is real: one rank measures what it would take among others. What comes from the others is
/// zeros.
std::unique_ptr<ProcessGroup> make_lone_rank(const FakeJob& job, const std::function<void(ProcessGroup&)>& rehearsal);

}  // namespace fsdp
