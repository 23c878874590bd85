#pragma once
// data/gpt2/merges.txt as part of the program; its source file is generated when the build is configured.
#include <string_view>

namespace fsdp::detail {

/// The whole file, unchanged.
std::string_view gpt2_merges_text();

}  // namespace fsdp::detail
