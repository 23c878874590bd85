// main() of the tests that need a GPU; without a GPU it skips them and prints the reason.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "lib/engine/collectives/device_backend.hpp"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  std::string why_not;
  if (fsdp::load_cuda_backend(&why_not) == nullptr) {
    std::printf("skipped: %s\n", why_not.c_str());
    return kSkipped;
  }
  return doctest::Context(argc, argv).run();
}
