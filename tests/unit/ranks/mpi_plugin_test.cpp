#include "lib/ranks/mpi_plugin.hpp"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "lib/base/types/error.hpp"

namespace {

std::filesystem::path built_plugin() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  for (const auto& candidate : fsdp::detail::mpi_plugin_candidates(program.parent_path())) {
    if (std::filesystem::exists(candidate)) return candidate;
  }
  return "";
}

bool mpi_is_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libmpi") != std::string::npos) return true;
  }
  return false;
}

std::string error_of(const std::filesystem::path& library, const std::string& abi) {
  try {
    fsdp::detail::open_mpi_plugin(library, abi);
  } catch (const fsdp::RuntimeFailure& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace

TEST_SUITE("mpi/mpi_plugin") {
  TEST_CASE("open_mpi_plugin: a missing library, a foreign library, a library of another build") {
    CHECK(!mpi_is_mapped());
    CHECK(error_of("/nowhere/libfsdp_mpi.so", fsdp::detail::kMpiPluginAbi).find("/nowhere/") != std::string::npos);
    CHECK(error_of("libm.so.6", fsdp::detail::kMpiPluginAbi).find("it lacks fsdp_") != std::string::npos);
    REQUIRE(!built_plugin().empty());
    const auto other = error_of(built_plugin(), "fsdp 9.9.9");
    CHECK(other.find("belongs to another build") != std::string::npos);
    CHECK(other.find("9.9.9") != std::string::npos);
  }

  TEST_CASE("load_mpi: real MPI with one rank without a launcher; its group works") {
    CHECK(fsdp::loaded_mpi_version().find("support") == std::string::npos);  // a version, not an error message
    const auto environment = fsdp::load_mpi({});
    CHECK(mpi_is_mapped());
    const auto world = environment->world();
    CHECK(world->size() == 1);
    std::array values{1.5, 2.5};
    world->all_reduce(values, fsdp::Reduce::sum);
    CHECK(values[1] == 2.5);
    CHECK(world->gather("text", 0) == std::vector<std::string>{"text"});
    CHECK(environment->everyone_failed(std::chrono::milliseconds(1000)));
  }
}
