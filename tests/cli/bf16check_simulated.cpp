// fsdp-bf16check on simulated hardware: replaces program_bf16_facts() of apps/bf16check/fsdp_bf16check.cpp in a program
// for tests.
//
// FSDP_SIMULATED_FACTS holds a JSON object of merge patches (RFC 7396) for the facts of ranks:
// {"1": {...}, "*": {...}}, "*" for all ranks. FSDP_SIMULATED_HANG names a rank whose measurement never ends.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "lib/bf16/fact_source.hpp"

namespace fsdp {
namespace {

class Simulated final : public Bf16FactSource {
 public:
  RankFacts identify(ProcessGroup& world, ProcessGroup& node, RequestedDevice device) override {
    rank_ = std::to_string(world.rank());
    return real_->identify(world, node, device);
  }
  GemmFacts measure_gemm(const GemmBudget&) override {
    const char* hang = std::getenv("FSDP_SIMULATED_HANG");
    while (hang != nullptr && rank_ == hang) std::this_thread::sleep_for(std::chrono::seconds(1));
    return real_->measure_gemm({0, 256});  // once: the speeds are simulated
  }
  c10::Device device() const override { return real_->device(); }
  DeviceBackend* backend() const override { return real_->backend(); }
  void finish(RankFacts& facts) override {
    const char* text = std::getenv("FSDP_SIMULATED_FACTS");
    if (text == nullptr) return;
    const auto patches = nlohmann::json::parse(text);
    auto json = to_json(facts);
    for (const auto& key : {std::string("*"), rank_}) {
      if (patches.contains(key)) json.merge_patch(patches.at(key));
    }
    facts = rank_facts_from_json(json);
  }

 private:
  std::unique_ptr<Bf16FactSource> real_ = make_bf16_fact_source();
  std::string rank_;
};

}  // namespace

std::unique_ptr<Bf16FactSource> program_bf16_facts() { return std::make_unique<Simulated>(); }

}  // namespace fsdp
