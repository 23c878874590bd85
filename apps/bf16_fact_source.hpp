#pragma once
// Where fsdp-bf16check takes its facts from; a test of the program links another definition.
#include <memory>

#include "lib/probe/bf16_local.hpp"

namespace fsdp {

std::unique_ptr<Bf16FactSource> program_bf16_facts();

}  // namespace fsdp
