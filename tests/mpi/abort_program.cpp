// Rank 1 fails while the other ranks wait for it in a barrier: MpiEnvironment::abort must end all of them.
#include <chrono>
#include <cstdio>
#include <stdexcept>

#include "lib/ranks/mpi_environment.hpp"

int main() {
  try {
    fsdp::MpiEnvironment environment({});
    const auto world = environment.world();
    world->barrier();
    if (world->rank() == 1) throw std::runtime_error("rank 1 fails on purpose");
    world->barrier();
    std::puts("the barrier let rank 0 through");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    fsdp::MpiEnvironment::abort(85);
  }
}
