#include "lib/bf16/fact_source.hpp"

#include <algorithm>

#include "lib/base/process/scheduler.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/bf16/facts.hpp"
#include "lib/bf16/processor.hpp"

namespace fsdp {
namespace {

class ThisMachine final : public Bf16FactSource {
 public:
  RankFacts identify(ProcessGroup& world, ProcessGroup& node, RequestedDevice device) override {
    RankFacts facts;
    facts.rank = world.rank();
    facts.host = host_name();
    facts.processor = read_processor();
    if (device != RequestedDevice::cpu) choose_gpu(node, device, facts);
    return facts;
  }

  GemmFacts measure_gemm(const GemmBudget& budget) override {
    return fsdp::measure_gemm(
        device_,
        [this] {
          if (backend_ != nullptr) backend_->synchronize(device_.index());
        },
        budget);
  }

  c10::Device device() const override { return device_; }
  DeviceBackend* backend() const override { return backend_.get(); }
  void finish(RankFacts&) override {}

 private:
  void choose_gpu(ProcessGroup& node, RequestedDevice device, RankFacts& facts) {
    std::string why_not;
    auto backend = load_cuda_backend(&why_not);
    if (backend != nullptr && backend->device_count() == 0) {
      backend.reset();
      why_not = "the driver shows no GPU to this process";
    }
    const auto share = share_gpus(node, backend.get());
    if (backend == nullptr) {
      facts.gpu_missing = why_not;
      // The driver sees a device that cannot be used, or the user asked for one.
      facts.gpu_broken = detail::cuda_driver_problem().empty() || device == RequestedDevice::cuda;
      return;
    }
    const int index = element(share.device, node.rank());
    backend->set_device(index);
    facts.gpu = backend->info(index);
    device_ = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    backend_ = std::move(backend);
  }

  c10::Device device_{c10::kCPU};
  std::shared_ptr<DeviceBackend> backend_;
};

}  // namespace

std::unique_ptr<Bf16FactSource> make_bf16_fact_source() { return std::make_unique<ThisMachine>(); }

}  // namespace fsdp
