#pragma once
// Cures of NCCL's common failures, by the words of its errors. Free of NCCL, so that tests need no GPU.
#include <array>
#include <string_view>

namespace fsdp::detail {

struct NcclAdvice {
  std::string_view words;  ///< in NCCL's text (2.28.9)
  std::string_view cure;
};

/// The first row that matches counts: errors of InfiniBand also contain words of memory.
inline constexpr std::array<NcclAdvice, 12> kNcclAdvice{{
    {"no socket interface found",
     "NCCL finds no network interface that it may use: NCCL_SOCKET_IFNAME names one that this node has"},
    {"exceeded error retry count",
     "NCCL connects over an interface that the other node does not reach, or a firewall is between them: "
     "NCCL_SOCKET_IFNAME names the right one"},
    {"Connection refused",
     "NCCL connects over an interface that the other node does not reach, or a firewall is between them: "
     "NCCL_SOCKET_IFNAME names the right one"},
    {"No route to host",
     "NCCL connects over an interface that the other node does not reach, or a firewall is between them: "
     "NCCL_SOCKET_IFNAME names the right one"},
    {"NVLS",
     "NVLink's switches refuse to multicast, which a container or the fabric manager can cause: NCCL_NVLS_ENABLE=0 "
     "goes without"},
    {"ibv_modify_qp",
     "InfiniBand or RoCE cannot reach the other node with this address: NCCL_IB_HCA names the right card, "
     "NCCL_IB_GID_INDEX its address"},
    {"Got completion from peer",
     "InfiniBand or RoCE cannot reach the other node with this address: NCCL_IB_HCA names the right card, "
     "NCCL_IB_GID_INDEX its address"},
    {"ibv_",
     "the limit of locked memory is too small for InfiniBand: ulimit -l unlimited on every node (in a container: "
     "--ulimit memlock=-1)"},
    {"shared memory segment",
     "/dev/shm is too small for NCCL: give the container --ipc=host or --shm-size 1g, and remove /dev/shm/nccl-* that "
     "earlier jobs left"},
    {"failed to extend",
     "/dev/shm is too small for NCCL: give the container --ipc=host or --shm-size 1g, and remove /dev/shm/nccl-* that "
     "earlier jobs left"},
    {"Duplicate GPU", "each rank needs a GPU of its own"},
    {"driver version is insufficient", "this node's NVIDIA driver is older than the CUDA of this build: update it"},
}};

/// \param text  an error of NCCL. \return the cure; "" for an error that is not known
constexpr std::string_view nccl_cure(std::string_view text) {
  for (const auto& [words, cure] : kNcclAdvice) {
    if (text.find(words) != std::string_view::npos) return cure;
  }
  return {};
}

}  // namespace fsdp::detail
