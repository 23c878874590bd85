#include "lib/compute/device/gpus.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"

TEST_SUITE("memory/cards") {
  TEST_CASE("cards by name, ignoring case; an unknown name lists the choices") {
    CHECK(fsdp::find_gpu("a100-80g").total_bytes == std::int64_t{81050} << 20);
    CHECK(fsdp::find_gpu("A100-80GB").name == "a100-80g");
    CHECK(fsdp::find_gpu("v100-32g").compute_capability == 70);
    CHECK_THROWS_WITH_AS(fsdp::find_gpu("a1000"), doctest::Contains("a100-40g"), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::find_gpu(""), fsdp::RequestError);
  }

  TEST_CASE("each rank has a GPU of its own, whichever of them its launcher shows it") {
    using Seen = std::vector<std::vector<std::string>>;
    const auto devices = [](const Seen& seen) {
      const auto share = fsdp::share_gpus(seen);
      CHECK(share.first_without == -1);
      return share.device;
    };
    using Devices = std::vector<int>;
    const std::vector<std::string> all{"a", "b", "c", "d"};
    CHECK(devices({all, all, all}) == Devices{0, 1, 2});
    CHECK(devices({{"a"}, {"b"}, {"c"}, {"d"}}) == Devices{0, 0, 0, 0});
    CHECK(devices({{"a", "b"}, {"a", "b"}, {"c", "d"}, {"c", "d"}}) == Devices{0, 1, 0, 1});
    CHECK(devices({{"a", "b"}, {"c", "d"}, {"a", "b"}, {"c", "d"}}) == Devices{0, 1, 1, 0});
    CHECK(devices({all, {"a"}, {"a", "b"}, {"b", "c"}}) == Devices{3, 0, 1, 1});  // the first ones make room
    CHECK(devices({{}, {"a"}, {}}) == Devices{0, 0, 0});
    CHECK(devices({{"MIG-1"}, {"MIG-2"}}) == Devices{0, 0});
  }

  TEST_CASE("ranks share GPUs where there are too few of them") {
    const auto crowd = fsdp::share_gpus({{"a", "b"}, {"a", "b"}, {"a", "b"}});
    CHECK(crowd.device == std::vector<int>{0, 1, 0});
    CHECK(crowd.num_gpus == 2);
    CHECK(crowd.first_without == 2);
    const auto bound = fsdp::share_gpus({{"a"}, {"a"}, {"b", "c"}});
    CHECK(bound.device == std::vector<int>{0, 0, 0});
    CHECK(bound.num_gpus == 3);
    CHECK(bound.first_without == 1);
  }

  TEST_CASE("NCCL takes more where switches connect the GPUs, and across nodes") {
    const auto mib = [](const char* gpu, int axes, bool several_nodes) {
      return fsdp::usual_overheads(fsdp::find_gpu(gpu), axes, several_nodes).nccl_bytes >> 20;
    };
    CHECK(mib("h100", 1, false) == 300);
    CHECK(mib("h100", 2, false) == 600);
    CHECK(mib("a100-40g", 1, true) == 380);
    CHECK(mib("l40s", 1, false) == 180);
    CHECK(mib("v100-16g", 2, true) == 520);
    CHECK(mib("h100", 0, false) == 0);
  }

  TEST_CASE("a number of bytes also describes a card") {
    CHECK(fsdp::find_gpu("79GiB").total_bytes == std::int64_t{79} << 30);
    CHECK(fsdp::find_gpu("8e10").total_bytes == 80'000'000'000);
    CHECK_THROWS_AS(fsdp::find_gpu("12"), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::find_gpu("80 elephants"), fsdp::RequestError);
  }

  TEST_CASE("units of bytes") {
    CHECK(fsdp::parse_bytes("1.5 GiB", "--x") == std::int64_t{3} << 29);
    CHECK(fsdp::parse_bytes("512MB", "--x") == 512'000'000);
    CHECK(fsdp::parse_bytes("0", "--x") == 0);
    CHECK_THROWS_WITH_AS(fsdp::parse_bytes("-1", "--x"), doctest::Contains("--x"), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::parse_bytes("1e30", "--x"), fsdp::RequestError);
    CHECK_THROWS_AS(fsdp::parse_bytes("nan", "--x"), fsdp::RequestError);
  }
}
