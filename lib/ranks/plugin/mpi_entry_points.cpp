// The symbols of libfsdp_mpi.so; see lib/ranks/mpi_plugin.hpp. No exception crosses them.
#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>

#include "lib/ranks/mpi_environment.hpp"
#include "lib/ranks/mpi_plugin.hpp"

#define FSDP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/// Cut to what fits, always terminated.
void put_text(std::string_view text, char* out, std::size_t out_bytes) {
  if (out_bytes == 0) return;
  const auto n = std::min(text.size(), out_bytes - 1);
  std::memcpy(out, text.data(), n);
  out[n] = '\0';
}

}  // namespace

FSDP_EXPORT const char* fsdp_mpi_abi() { return fsdp::detail::kMpiPluginAbi; }

FSDP_EXPORT fsdp::RankEnvironment* fsdp_make_mpi(const fsdp::MpiOptions* options, fsdp::ExitCode* code, char* error,
                                                 std::size_t error_bytes) {
  *code = fsdp::ExitCode::failed;
  try {
    return new fsdp::MpiEnvironment(*options);
  } catch (const fsdp::Error& failure) {
    *code = failure.code();
    put_text(failure.what(), error, error_bytes);
    return nullptr;
  } catch (const std::exception& failure) {
    put_text(failure.what(), error, error_bytes);
    return nullptr;
  }
}

FSDP_EXPORT void fsdp_mpi_version(char* text, std::size_t text_bytes) {
  put_text(fsdp::MpiEnvironment::library_version(), text, text_bytes);
}
