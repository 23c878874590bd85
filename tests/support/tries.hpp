#pragma once
// The share of a product of cases that the default tests try. The labels of tests with whole products have "long".
#include <cstdlib>

namespace fsdp::test {

/// True for every `every`-th number of a product of runs, and for all where FSDP_ALL is set.
inline bool tries(int number, int every) { return number % every == 0 || std::getenv("FSDP_ALL") != nullptr; }

}  // namespace fsdp::test
