#include "lib/engine/collectives/device_backend.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "lib/base/process/plugin.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/texts_of_ranks.hpp"

namespace fsdp {
namespace detail {
namespace {

/// Reasons go into log lines and tables: one line each.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string last_dl_error() {
  const char* text = ::dlerror();
  return one_line(text != nullptr ? text : "unknown reason");
}

template <class Function>
Function* find_symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

/// The driver's sentence for a CUresult, or its number.
std::string driver_error(void* driver, int code) {
  auto* describe = find_symbol<int(int, const char**)>(driver, "cuGetErrorString");
  const char* text = nullptr;
  if (describe == nullptr || describe(code, &text) != 0 || text == nullptr) return fmt::format("CUDA error {}", code);
  return fmt::format("{} (CUDA error {})", text, code);
}

std::string visible_devices_note() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES=\"{}\")", visible);
}

/// Its symbols are global, so that libtorch_cuda's kernels register with the LibTorch already here.
const PluginKind& backend_kind() {
  static const PluginKind kind{"libfsdp_cuda.so", "CUDA back end", kBackendAbiSymbol, {kMakeBackendSymbol}, true};
  return kind;
}

}  // namespace

std::string cuda_driver_problem() {
  // Never closed: a driver that was initialised does not survive being unloaded.
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (driver == nullptr) return "no NVIDIA driver on this machine (" + last_dl_error() + ")";
  auto* init = find_symbol<int(unsigned)>(driver, "cuInit");
  auto* count_devices = find_symbol<int(int*)>(driver, "cuDeviceGetCount");
  if (init == nullptr || count_devices == nullptr)
    return "libcuda.so.1 is not NVIDIA's driver library: it lacks cuInit";
  constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
  const int code = init(0);
  if (code == kNoDevice) return "the NVIDIA driver sees no device" + visible_devices_note();
  if (code != 0) return "the NVIDIA driver does not start: " + driver_error(driver, code) + visible_devices_note();
  int count = 0;
  if (const int failed = count_devices(&count); failed != 0) {
    return "the NVIDIA driver cannot count devices: " + driver_error(driver, failed);
  }
  return count > 0 ? "" : "the NVIDIA driver sees no device" + visible_devices_note();
}

std::vector<std::filesystem::path> backend_candidates(const std::filesystem::path& program_directory) {
  return plugin_candidates(program_directory, backend_kind().file);
}

std::shared_ptr<DeviceBackend> open_backend(const std::filesystem::path& library, const std::string& abi,
                                            std::string& why_not) {
  void* make = nullptr;
  try {
    make = open_plugin(backend_kind(), library, abi).front();
  } catch (const RuntimeFailure& failure) {
    why_not = one_line(failure.what());
    return nullptr;
  }
  std::array<char, 1024> error{};
  std::shared_ptr<DeviceBackend> backend(reinterpret_cast<MakeBackendFunction*>(make)(error.data(), error.size()));
  if (backend == nullptr) {
    error.back() = '\0';
    why_not = one_line(error.data());
  }
  return backend;
}

}  // namespace detail

std::int64_t bytes_outside_allocator(const DeviceBackend& backend, int device) {
  return backend.info(device).total_bytes - backend.free_bytes(device) - backend.memory(device).reserved_bytes;
}

GpuShare share_gpus(ProcessGroup& node, const DeviceBackend* backend) {
  std::string local_names;
  for (int i = 0; backend != nullptr && i < backend->device_count(); ++i) {
    const auto info = backend->info(i);
    local_names += (info.uuid.empty() ? info.pci_bus_id : info.uuid) + "\n";
  }
  std::vector<std::vector<std::string>> visible;
  for (const auto& names : texts_of_ranks(node, local_names)) {
    std::istringstream lines(names);
    auto& rank = visible.emplace_back();
    for (std::string line; std::getline(lines, line);) rank.push_back(line);
  }
  return share_gpus(visible);
}

std::shared_ptr<DeviceBackend> load_cuda_backend(std::string* why_not) {
  std::string unwanted;
  std::string& reason = why_not != nullptr ? *why_not : unwanted;
  reason = detail::cuda_driver_problem();
  if (!reason.empty()) return nullptr;

  std::vector<std::filesystem::path> looked_at;
  try {
    if (const auto library = find_plugin(detail::backend_kind(), looked_at)) {
      return detail::open_backend(*library, detail::kDeviceBackendAbi, reason);
    }
  } catch (const RuntimeFailure& failure) {
    reason = failure.what();
    return nullptr;
  }
  reason = fmt::format("this build has no CUDA back end (neither {} nor {} exists)", looked_at.front().string(),
                       looked_at.back().string());
  return nullptr;
}

bool has_cuda_backend() {
  std::vector<std::filesystem::path> looked_at;
  try {
    return find_plugin(detail::backend_kind(), looked_at).has_value();
  } catch (const RuntimeFailure&) {
    return false;
  }
}

}  // namespace fsdp
