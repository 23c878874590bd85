#include "lib/compute/device/nvml.hpp"

#include <dlfcn.h>

#include <utility>

namespace fsdp {
namespace {

// Names, signatures and numbers of NVIDIA's NVML API Reference Guide. A handle is a pointer; 0 is success.
constexpr int kTemperatureOfGpu = 0;             // NVML_TEMPERATURE_GPU
constexpr int kClockOfMultiprocessors = 1;       // NVML_CLOCK_SM
constexpr int kCorrected = 0, kUncorrected = 1;  // nvmlMemoryErrorType_t
constexpr int kSinceLoad = 0;                    // NVML_VOLATILE_ECC

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
    find_function(library, "nvmlDeviceGetClockInfo", clock);
    find_function(library, "nvmlDeviceGetCurrentClocksThrottleReasons", limits);  // its name in all versions
    find_function(library, "nvmlDeviceGetTotalEccErrors", ecc_errors);
    find_function(library, "nvmlDeviceGetRemappedRows", remapped_rows);
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
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*limits)(void*, unsigned long long*) = nullptr;
  int (*ecc_errors)(void*, int, int, unsigned long long*) = nullptr;
  int (*remapped_rows)(void*, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
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
  if (unsigned found = 0; f.clock != nullptr && f.clock(device_, kClockOfMultiprocessors, &found) == 0)
    reading.megahertz = found;
  if (unsigned long long found = 0; f.limits != nullptr && f.limits(device_, &found) == 0)
    reading.limits = static_cast<double>(found);
  const auto errors = [&](int kind) -> std::optional<double> {
    unsigned long long found = 0;
    if (f.ecc_errors == nullptr || f.ecc_errors(device_, kind, kSinceLoad, &found) != 0) return std::nullopt;
    return static_cast<double>(found);
  };
  reading.ecc_corrected = errors(kCorrected);
  reading.ecc_uncorrected = errors(kUncorrected);
  unsigned corrected = 0, uncorrected = 0, is_pending = 0, has_failed = 0;
  if (f.remapped_rows != nullptr && f.remapped_rows(device_, &corrected, &uncorrected, &is_pending, &has_failed) == 0)
    reading.remapped_rows = corrected + uncorrected;
  return reading;
}

}  // namespace fsdp
