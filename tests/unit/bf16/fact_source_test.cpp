#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "lib/bf16/bf16_gemm.hpp"
#include "lib/bf16/fact_source.hpp"
#include "lib/bf16/facts.hpp"
#include "lib/bf16/nccl_log.hpp"
#include "lib/bf16/processor.hpp"
#include "tests/support/torch_doctest.hpp"

using namespace fsdp;

TEST_SUITE("bf16/local") {
  TEST_CASE("parse_cpuinfo: name and flags, as whole words, of the first core") {
    const auto p = fsdp::detail::parse_cpuinfo(
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\n"
        "flags\t\t: fpu avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8\n\nprocessor\t: 1\nmodel name\t: other\n");
    CHECK(p.name == "Intel(R) Xeon(R) Platinum 8480+");
    CHECK(p.avx512_bf16);
    CHECK(p.amx_bf16);
    CHECK(p.amx_tile);
    CHECK_FALSE(p.amx_permitted);

    const auto old = fsdp::detail::parse_cpuinfo("model name : x\nflags : avx512_bf16x xamx_tile avx2 avx512f");
    CHECK_FALSE(old.avx512_bf16);
    CHECK_FALSE(old.amx_tile);
    CHECK(fsdp::detail::parse_cpuinfo("").name.empty());
    CHECK_FALSE(fsdp::detail::parse_cpuinfo("flags\t:\n").avx512_bf16);
  }

  TEST_CASE("apply_arm_hwcap2: decodes the kernel's bits") {
    ProcessorFacts p;
    fsdp::detail::apply_arm_hwcap2(1UL << 14, p);
    CHECK(p.arm_bf16);
    CHECK_FALSE(p.arm_sve_bf16);
    fsdp::detail::apply_arm_hwcap2(1UL << 12, p);
    CHECK_FALSE(p.arm_bf16);
    CHECK(p.arm_sve_bf16);
  }

  TEST_CASE("read_processor: agrees with /proc/cpuinfo") {
    bool listed = false;
#if defined(__x86_64__)  // on other processors it has no such flags, or is that of an emulating machine
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
      listed = listed || (line.rfind("flags", 0) == 0 && (line + " ").find(" avx512_bf16 ") != std::string::npos);
    }
#endif
    CHECK(read_processor().avx512_bf16 == listed);
    CHECK_FALSE(read_processor().name.empty());
  }

  TEST_CASE("measure_gemm: measures all three products within the largest size") {
    const auto facts = measure_gemm(c10::Device(c10::kCPU), [] {}, {0.01, 512});
    CHECK(facts.failure.empty());
    CHECK(facts.bf16_tflops > 0);
    CHECK(facts.float32_tflops > 0);
    CHECK(facts.float32_aten_tflops > 0);
    CHECK(facts.ratio() == doctest::Approx(facts.bf16_tflops / facts.float32_tflops));
    CHECK(facts.size <= 512);
  }

  TEST_CASE("measure_gemm: an exception of LibTorch becomes GemmFacts::failure") {
    const auto facts =
        measure_gemm(c10::Device(c10::kCPU), [] { TORCH_CHECK(false, "the device fell off"); }, {0.01, 256});
    CHECK(facts.failure == "the device fell off");
    CHECK(facts.bf16_tflops == 0);
  }

  TEST_CASE("onednn_bf16_implementation: names the implementation and prints nothing") {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    std::fflush(stdout);
    const int before = ::dup(STDOUT_FILENO);
    ::dup2(ends[1], STDOUT_FILENO);
    const auto name = onednn_bf16_implementation();
    std::printf("end\n");
    std::fflush(stdout);
    ::dup2(before, STDOUT_FILENO);
    ::close(before);
    ::close(ends[1]);
    std::array<char, 256> text{};
    const auto got = ::read(ends[0], text.data(), text.size());
    ::close(ends[0]);
    CHECK(std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))) == "end\n");
    if (read_processor().avx512_bf16 && std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr)
      // AMX implementations do not name a type
      CHECK((name.find("bf16") != std::string::npos || name.find("amx") != std::string::npos));
  }

  TEST_CASE("implementation_of_verbose: the last execution of a product") {
    const std::string info = "onednn_verbose,v1,info,oneDNN v3.10.2\n";
    CHECK(fsdp::detail::implementation_of_verbose(info).empty());
    CHECK(fsdp::detail::implementation_of_verbose(
              info + "onednn_verbose,v1,primitive,exec,cpu,matmul,gemm:jit:bf16,undef,src:bf16\n"
                     "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx10_1_512_amx,undef,src:bf16\n"
                     "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef\n") == "brg_matmul:avx10_1_512_amx");
  }

  TEST_CASE("transports_in_log: parses lines of NCCL's log") {
    CHECK(fsdp::detail::transports_in_log("").empty());
    CHECK(fsdp::detail::transports_in_log("h:1:1 [0] NCCL INFO Using network AWS Libfabric\n") == "NET/AWS Libfabric");
    CHECK(fsdp::detail::transports_in_log(
              "h:1:1 [0] NCCL INFO Using network IB\n"
              "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
              "h:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
              "h:1:1 [0] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0(2)/GDRDMA\n") ==
          "NET/IB + P2P/CUMEM");
    CHECK(fsdp::detail::transports_in_log("h:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n") ==
          "SHM/direct");
    CHECK(fsdp::detail::transports_in_log(
              "h:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0\r\n") == "NET/Socket");
    CHECK(fsdp::detail::transports_in_log("h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer") ==
          "P2P/direct");
    CHECK(fsdp::detail::transports_in_log("h:1:1 [0] NCCL INFO RAS connected with x via a socket\n").empty());
  }
}
