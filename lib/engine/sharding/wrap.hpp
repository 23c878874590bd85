#pragma once
// Grouping of parameters into units, which are gathered and reduced together.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// --wrap block | none | size:N
struct WrapPolicy {
  enum class Kind { block, none, size } kind = Kind::block;
  std::int64_t size_elements = 0;  ///< Kind::size: blocks are joined until a unit has at least this many parameters
};

inline constexpr const char* kWrapChoices = "block, none, size:N (N parameters per unit)";
/// \throws RequestError naming the choices
WrapPolicy parse_wrap(std::string_view text, std::string_view option = "wrap");
std::string to_string(const WrapPolicy& policy);

/// One parameter as make_units() sees it.
struct WrapInput {
  std::int64_t elements;
  int block;  ///< -1: outside the blocks
};

/// Units as lists of parameter indices. Unit 0 is the root (everything outside the blocks); it serves the first and the
/// last layer, which is how a tied head works. With Kind::none it holds everything. All of a block is in one unit.
std::vector<std::vector<int>> make_units(const std::vector<WrapInput>& parameters, const WrapPolicy& policy);

}  // namespace fsdp
