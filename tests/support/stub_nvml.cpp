// Stands for NVIDIA's management library, with one GPU: at 87 %, with 12 GiB in use, 312.5 W, 61 C, at 1410 MHz since
// it is too hot, with 5 ECC errors and 3 remapped rows. Of a slice (a UUID that begins with MIG) it tells no use, as
// the real one. FSDP_STUB_NVML=broken: it does not start.
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6, kUnknown = 999;
int users = 0;
bool is_slice = false;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() {
  const char* wish = std::getenv("FSDP_STUB_NVML");
  if (wish != nullptr && std::string_view(wish) == "broken") return kUnknown;
  ++users;
  return kSuccess;
}
int nvmlShutdown() {
  --users;
  return kSuccess;
}
int stub_nvml_users() { return users; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strncmp(uuid, "GPU-unknown", 11) == 0) return kNotFound;
  is_slice = std::strncmp(uuid, "MIG", 3) == 0;
  *device = &users;
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (std::strcmp(bus_id, "0000:3b:00.0") != 0) return kNotFound;
  is_slice = false;
  *device = &users;
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  if (device != &users || is_slice) return kNotSupported;
  rates[0] = 87;
  rates[1] = 40;
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* info) {
  info[0] = 40ULL << 30;
  info[1] = 28ULL << 30;
  info[2] = 12ULL << 30;
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 312500;
  return kSuccess;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  if (sensor != 0) return kNotSupported;
  *celsius = 61;
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* megahertz) {
  if (kind != 1) return kNotSupported;
  *megahertz = 1410;
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x40;
  return kSuccess;
}
int nvmlDeviceGetTotalEccErrors(void*, int kind, int counter, unsigned long long* errors) {
  if (counter != 0) return kNotSupported;
  *errors = kind == 0 ? 4 : 1;
  return kSuccess;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) {
  *corrected = 2;
  *uncorrected = 1;
  *pending = *failed = 0;
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
