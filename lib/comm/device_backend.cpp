#include "lib/comm/device_backend.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <system_error>

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
  const auto lib = program_directory.parent_path() / "lib";  // also the build tree's
  return {lib / "fsdp" / "libfsdp_cuda.so", lib / "libfsdp_cuda.so"};
}

std::shared_ptr<DeviceBackend> open_backend(const std::filesystem::path& library, const std::string& abi,
                                            std::string& why_not) {
  // Global, so that libtorch_cuda's kernels register with the LibTorch already here. Never unloaded: LibTorch keeps
  // pointers to them.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (handle == nullptr) {
    why_not = "the CUDA back end does not load: " + last_dl_error();
    return nullptr;
  }
  auto* abi_of = find_symbol<BackendAbiFunction>(handle, kBackendAbiSymbol);
  auto* make = find_symbol<MakeBackendFunction>(handle, kMakeBackendSymbol);
  if (abi_of == nullptr || make == nullptr) {
    why_not = fmt::format("{} is not a back end of this toolkit: it lacks {}", library.string(),
                          abi_of == nullptr ? kBackendAbiSymbol : kMakeBackendSymbol);
    return nullptr;
  }
  if (abi != abi_of()) {
    why_not =
        fmt::format("{} belongs to another build: it is for \"{}\", this program is \"{}\"; install both together",
                    library.string(), abi_of(), abi);
    return nullptr;
  }
  std::array<char, 1024> error{};
  std::shared_ptr<DeviceBackend> backend(make(error.data(), error.size()));
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

std::shared_ptr<DeviceBackend> load_cuda_backend(std::string* why_not) {
  std::string unwanted;
  std::string& reason = why_not != nullptr ? *why_not : unwanted;
  reason = detail::cuda_driver_problem();
  if (!reason.empty()) return nullptr;

  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    reason = "cannot tell where this program lies (/proc/self/exe: " + error.message() + ")";
    return nullptr;
  }
  const auto candidates = detail::backend_candidates(program.parent_path());
  for (const auto& candidate : candidates) {
    if (std::filesystem::exists(candidate, error)) {
      return detail::open_backend(candidate, detail::kDeviceBackendAbi, reason);
    }
  }
  reason = fmt::format("this build has no CUDA back end (neither {} nor {} exists)", candidates.front().string(),
                       candidates.back().string());
  return nullptr;
}

}  // namespace fsdp
