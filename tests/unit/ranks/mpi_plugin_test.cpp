#include "lib/ranks/mpi_plugin.hpp"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "lib/base/types/error.hpp"
#include "tests/support/environment.hpp"

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

  TEST_CASE("families_to_try: by the launcher's variables, unless FSDP_LOAD_MPI names one") {
    using Variables = fsdp::test::Environment::Variables;
    const auto words = [](const Variables& variables) {
      const fsdp::test::Environment environment(variables);
      std::string text;
      for (const auto& family : fsdp::detail::families_to_try()) text += std::string(family.word) + " ";
      return text;
    };
    CHECK(words({}) == "own standard ");
    CHECK(words({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}) == "own standard ");
    CHECK(words({{"PMIX_RANK", "0"}, {"OMPI_COMM_WORLD_RANK", "0"}}) == "openmpi standard own ");
    CHECK(words({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}) == "openmpi own standard ");
    CHECK(words({{"PMI_RANK", "1"}, {"PMIX_RANK", "1"}}) == "own standard ");  // Cray's launcher sets both
    CHECK(words({{"OMPI_COMM_WORLD_RANK", "0"}, {"FSDP_LOAD_MPI", "standard"}}) == "standard ");
    CHECK_THROWS_AS(words({{"FSDP_LOAD_MPI", "lam"}}), fsdp::UsageError);
  }

  TEST_CASE("library_folders_of: beside the launcher's folder of programs") {
    const auto folders = fsdp::detail::library_folders_of("/opt/openmpi/bin/orted");
    CHECK(folders == std::vector<std::filesystem::path>{"/opt/openmpi/lib", "/opt/openmpi/lib64"});
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
