#include "apps/bf16check/bf16_fact_source.hpp"

namespace fsdp {

std::unique_ptr<Bf16FactSource> program_bf16_facts() { return make_bf16_fact_source(); }

}  // namespace fsdp
