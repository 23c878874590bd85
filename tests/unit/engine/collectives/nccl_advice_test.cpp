#include "lib/engine/collectives/nccl/nccl_advice.hpp"

#include <doctest/doctest.h>

#include <string_view>

using fsdp::detail::nccl_cure;

TEST_SUITE("comm/nccl advice") {
  TEST_CASE("NCCL's own texts lead to the variable or the setting that cures them") {
    struct Case {
      const char *text, *cure;
    };
    const Case cases[]{
        {"internal error - please report this issue to the NCCL developers (Bootstrap : no socket interface found)",
         "NCCL_SOCKET_IFNAME"},
        {"unhandled system error (socketPollConnect: connect to 192.168.122.1<40001> returned Connection refused, "
         "exceeded "
         "error retry count after 35 attempts)",
         "NCCL_SOCKET_IFNAME"},
        {"unhandled system error (socketStartConnect: Connect to 10.0.0.2<40001> failed : No route to host)",
         "NCCL_SOCKET_IFNAME"},
        {"unhandled system error (Error while creating shared memory segment /dev/shm/nccl-Sq2tXK (size 9637888), "
         "error: No "
         "space left on device (28))",
         "--ipc=host"},
        {"unhandled system error (Error: failed to extend /dev/shm/nccl-Sq2tXK to 9637892 bytes)", "--ipc=host"},
        {"unhandled system error (Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory)", "ulimit -l"},
        {"unhandled system error (Call to ibv_create_cq failed with error Cannot allocate memory)", "ulimit -l"},
        {"unhandled system error (Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1)",
         "NCCL_IB_GID_INDEX"},
        {"unhandled system error (NET/IB: Got completion from peer 10.0.0.2<37183> with status=12)", "NCCL_IB_HCA"},
        {"unhandled cuda error (Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401)",
         "NCCL_NVLS_ENABLE=0"},
        {"invalid usage (Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000)", "a GPU of its own"},
        {"unhandled cuda error (CUDA driver version is insufficient for CUDA runtime version)", "driver"},
    };
    for (const auto& [text, cure] : cases) {
      CAPTURE(text);
      CHECK(nccl_cure(text).find(cure) != std::string_view::npos);
    }
    CHECK(nccl_cure("remote process exited or there was a network error").empty());
  }
}
