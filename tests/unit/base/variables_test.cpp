// The project's environment variables: the values that each takes, and the names that nothing reads.
#include "lib/base/process/variables.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/types/error.hpp"
#include "tests/support/environment.hpp"

using namespace fsdp;

namespace {

TEST_SUITE("variables") {
  TEST_CASE("a value that a variable does not take is refused with the values that it takes") {
    for (const auto& [name, wrong, expected] : std::vector<std::tuple<std::string, std::string, std::string>>{
             {"FSDP_BF16_GEMM", "widend", "native or widened"},
             {"FSDP_FLOAT32_GEMM", "mkl", "aten or onednn"},
             {"FSDP_CPU_ISA", "avx-512", "portable, avx2, avx512 or sve"},
             {"FSDP_CPU_ISA", "avx2, avx512", "portable, avx2, avx512 or sve"},
             {"FSDP_CUDA_ATTENTION", "flsh", "cudnn, flash, efficient or blocks"},
             {"FSDP_CUDA_KERNELS", "no", "on or off"},
             {"FSDP_OFFLOAD_IO", "thread", "threads"},
             {"FSDP_CPU_FLOPS", "1TF", "a number above 0"},
             {"FSDP_CPU_FLOPS", "0", "a number above 0"},
             {"FSDP_CPU_FLOPS", "inf", "a number above 0"}}) {
      const test::Environment environment(test::Environment::Variables{{name, wrong}});
      const auto message = name + "=" + wrong + ": expected " + expected;
      CHECK_THROWS_WITH_AS(variable_value(name), doctest::Contains(message.c_str()), UsageError);
      CHECK_THROWS_WITH_AS(check_variables(), doctest::Contains(message.c_str()), UsageError);
    }
  }

  TEST_CASE("each value of the list is taken, and an empty one is none") {
    for (const auto& variable : variables()) {
      std::string choices(variable.choices);
      if (choices.empty()) choices = variable.is_number ? "1e11" : "any text";
      for (std::size_t at = 0; at < choices.size();) {
        const auto end = std::min(choices.find(", ", at), choices.size());
        const auto word = choices.substr(at, end - at);
        const test::Environment environment(test::Environment::Variables{{std::string(variable.name), word}});
        CHECK(variable_value(variable.name) == word);
        CHECK_NOTHROW(check_variables());
        at = end + 2;
      }
      const test::Environment environment(test::Environment::Variables{{std::string(variable.name), ""}});
      CHECK_FALSE(variable_value(variable.name).has_value());
    }
  }

  TEST_CASE("names that nothing reads are found") {
    const test::Environment environment(test::Environment::Variables{{"FSDP_BF16_GEM", "native"},
                                                                     {"FSDP_BF16_GEMM", "native"},
                                                                     {"FSDP_OPT_SEED", "1"},
                                                                     {"FSDP_STUB_GPU", "h100"},
                                                                     {"FSDP_SHARDING_STRATEGY", "1"},
                                                                     {"MY_FSDP_X", "1"}});
    CHECK(unknown_variables() == std::vector<std::string>{"FSDP_BF16_GEM", "FSDP_SHARDING_STRATEGY"});
  }
}

}  // namespace
