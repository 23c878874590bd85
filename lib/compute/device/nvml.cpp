#include "lib/compute/device/nvml.hpp"

#include <dlfcn.h>

#include <utility>

namespace fsdp {
namespace {

// Names, signatures and numbers of NVIDIA's NVML API Reference Guide. A handle is a pointer; 0 is success.
constexpr int kTemperatureOfGpu = 0;  // NVML_TEMPERATURE_GPU

template <class Function>
void find_function(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

struct NvmlGpu::Functions {
  struct Utilization {
    unsigned gpu = 0, memory = 0;  ///< percent
  };
  struct MemoryInfo {
    unsigned long long total = 0, free = 0, used = 0;  ///< bytes
  };

  explicit Functions(const std::string& name) : library(::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    if (library == nullptr) return;
    find_function(library, "nvmlInit_v2", init);
    find_function(library, "nvmlShutdown", shutdown);
    find_function(library, "nvmlDeviceGetHandleByUUID", by_uuid);
    find_function(library, "nvmlDeviceGetHandleByPciBusId_v2", by_pci_bus_id);
    find_function(library, "nvmlDeviceGetUtilizationRates", utilization);
    find_function(library, "nvmlDeviceGetMemoryInfo", memory);
    find_function(library, "nvmlDeviceGetPowerUsage", milliwatts);
    find_function(library, "nvmlDeviceGetTemperature", temperature);
    is_ready = init != nullptr && shutdown != nullptr && init() == 0;
  }
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;
  ~Functions() {
    if (is_ready) shutdown();
    if (library != nullptr) ::dlclose(library);
  }

  void* library;
  bool is_ready = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_uuid)(const char*, void**) = nullptr;
  int (*by_pci_bus_id)(const char*, void**) = nullptr;
  int (*utilization)(void*, Utilization*) = nullptr;
  int (*memory)(void*, MemoryInfo*) = nullptr;
  int (*milliwatts)(void*, unsigned*) = nullptr;
  int (*temperature)(void*, int, unsigned*) = nullptr;
};

NvmlGpu::NvmlGpu(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}
NvmlGpu::~NvmlGpu() = default;

std::unique_ptr<NvmlGpu> NvmlGpu::open(const std::string& uuid, const std::string& pci_bus_id,
                                       const std::string& library) {
  std::unique_ptr<NvmlGpu> gpu(new NvmlGpu(std::make_unique<Functions>(library)));
  const auto& f = *gpu->functions_;
  if (!f.is_ready) return nullptr;
  const auto find = [&](int (*function)(const char*, void**), const std::string& name) {
    return function != nullptr && !name.empty() && function(name.c_str(), &gpu->device_) == 0;
  };
  return find(f.by_uuid, uuid) || find(f.by_pci_bus_id, pci_bus_id) ? std::move(gpu) : nullptr;
}

NvmlReading NvmlGpu::read() const {
  const auto& f = *functions_;
  NvmlReading reading;
  if (Functions::Utilization found; f.utilization != nullptr && f.utilization(device_, &found) == 0)
    reading.use = found.gpu / 100.0;
  if (Functions::MemoryInfo found; f.memory != nullptr && f.memory(device_, &found) == 0)
    reading.used_bytes = static_cast<double>(found.used);
  if (unsigned found = 0; f.milliwatts != nullptr && f.milliwatts(device_, &found) == 0) reading.watts = found / 1000.0;
  if (unsigned found = 0; f.temperature != nullptr && f.temperature(device_, kTemperatureOfGpu, &found) == 0)
    reading.celsius = found;
  return reading;
}

}  // namespace fsdp
