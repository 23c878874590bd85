#include "tests/support/torch_doctest.hpp"

#include <fstream>

#include "lib/engine/runtime/model_runtime.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

TEST_SUITE("jobs/device") {
  TEST_CASE("choose_device() reports a driver whose GPUs cannot be used, and nothing on a machine without a driver") {
    const test::TempDir folder;
    const auto alone = make_single_group();
    const auto driver = folder.path() / "nvidiactl";
    if (choose_device(RequestedDevice::automatic, *alone).backend != nullptr)
      return;  // the machine has a GPU that is used
    CHECK(choose_device(RequestedDevice::automatic, *alone, driver).unused_gpu.empty());
    std::ofstream(driver) << "";
    CHECK_FALSE(choose_device(RequestedDevice::automatic, *alone, driver).unused_gpu.empty());
    CHECK(choose_device(RequestedDevice::cpu, *alone, driver).unused_gpu.empty());
  }
}
