#pragma once
// The source of fsdp-bf16check's facts; a test of the program links another definition.
#include <memory>

#include "lib/bf16/local.hpp"

namespace fsdp {

std::unique_ptr<Bf16FactSource> program_bf16_facts();

}  // namespace fsdp
