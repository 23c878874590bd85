#pragma once
// Asks NVIDIA's management library (NVML) what a GPU does. The library belongs to the driver and is loaded at run time;
// nothing of it is needed to build.
#include <memory>
#include <optional>
#include <string>

namespace fsdp {

/// Each value is empty where the GPU or the driver does not tell it, as slices of a GPU (MIG) do not tell their use.
struct NvmlReading {
  std::optional<double> use;         ///< share of the last period, up to a second, in which a kernel ran
  std::optional<double> used_bytes;  ///< of the card, by all processes
  std::optional<double> watts;
  std::optional<double> celsius;
  std::optional<double> megahertz;                       ///< clock of the multiprocessors
  std::optional<double> limits;                          ///< what lowers that clock: bits of nvmlClocksEventReasons
  std::optional<double> ecc_corrected, ecc_uncorrected;  ///< errors of the memory since the driver was loaded
  std::optional<double> remapped_rows;                   ///< of the memory, for good
};

/// A GPU, and the library that tells of it. Use it from one thread at a time.
class NvmlGpu {
 public:
  /// The calls take milliseconds, the first ones longer.
  /// \param uuid, pci_bus_id  of DeviceInfo: the GPU is looked for by the first, then by the second
  /// \param library           for dlopen()
  /// \return null where there is no library, or the library does not know the GPU
  static std::unique_ptr<NvmlGpu> open(const std::string& uuid, const std::string& pci_bus_id,
                                       const std::string& library = "libnvidia-ml.so.1");
  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;
  ~NvmlGpu();

  NvmlReading read() const;

 private:
  struct Functions;
  explicit NvmlGpu(std::unique_ptr<Functions> functions);
  std::unique_ptr<Functions> functions_;
  void* device_ = nullptr;  ///< the library's handle, which it owns
};

}  // namespace fsdp
