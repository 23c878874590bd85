#include "tests/support/torch_doctest.hpp"

#include <ATen/Context.h>

#include <cstdlib>
#include <fstream>

#include "lib/base/types/error.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

TEST_SUITE("jobs/device") {
  TEST_CASE("choose_device() reports a driver whose GPUs cannot be used, and nothing on a machine without a driver") {
    const test::TempDir folder;
    const auto alone = make_single_group();
    const auto driver = folder.path() / "nvidiactl";
    if (choose_device(RequestedDevice::automatic, *alone, *alone).backend != nullptr)
      return;  // the machine has a GPU that is used
    CHECK(choose_device(RequestedDevice::automatic, *alone, *alone, driver).unused_gpu.empty());
    std::ofstream(driver) << "";
    CHECK_FALSE(choose_device(RequestedDevice::automatic, *alone, *alone, driver).unused_gpu.empty());
    CHECK(choose_device(RequestedDevice::cpu, *alone, *alone, driver).unused_gpu.empty());
  }

  TEST_CASE("TF32 is off whatever the environment says, and on CPUs it cannot be asked for") {
    const test::Environment environment(test::Environment::Variables{{"NVIDIA_TF32_OVERRIDE", "1"}});
    at::globalContext().setFloat32MatmulPrecision("high");  // what TORCH_ALLOW_TF32_CUBLAS_OVERRIDE does
    const auto alone = make_single_group();
    const auto device = choose_device(RequestedDevice::cpu, *alone, *alone);
    CHECK((at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST));
    CHECK(std::getenv("NVIDIA_TF32_OVERRIDE") == nullptr);
    CHECK_THROWS_WITH_AS(allow_tf32(device), doctest::Contains("TF32"), RequestError);
    CHECK((at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST));
  }
}
