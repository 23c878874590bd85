#include "lib/base/process/plugin.hpp"

#include <dlfcn.h>
#include <sys/auxv.h>

#include <fstream>
#include <system_error>

#include "lib/base/types/error.hpp"

namespace fsdp {

namespace {

/// The file of the running program. Without /proc, the one that the kernel was given, as far as it is still there.
std::filesystem::path own_program(std::error_code& error) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return program;
  const auto* given = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  std::error_code of_given;
  const auto path = std::filesystem::canonical(given == nullptr ? "" : given, of_given);
  if (!of_given) error.clear();
  return path;
}

}  // namespace

std::vector<std::filesystem::path> plugin_candidates(const std::filesystem::path& program_directory,
                                                     const std::string& file) {
  const auto lib = program_directory.parent_path() / "lib";
  return {lib / "fsdp" / file, lib / file};
}

std::optional<std::filesystem::path> find_plugin(const PluginKind& kind,
                                                 std::vector<std::filesystem::path>& looked_at) {
  std::error_code error;
  const auto program = own_program(error);
  if (error) {
    throw RuntimeFailure("cannot tell where this program lies (/proc/self/exe: " + error.message() +
                         "), and so not where its " + kind.support + " is");
  }
  looked_at = plugin_candidates(program.parent_path(), kind.file);
  for (const auto& candidate : looked_at) {
    if (std::filesystem::exists(candidate, error)) return candidate;
  }
  return std::nullopt;
}

std::vector<void*> open_plugin(const PluginKind& kind, const std::filesystem::path& library, const std::string& abi) {
  // Never unloaded, because these libraries keep threads and state.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NODELETE | (kind.global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (handle == nullptr) {
    const char* text = ::dlerror();
    throw RuntimeFailure("the " + kind.support + " does not load: " + (text != nullptr ? text : "unknown reason"));
  }
  auto* abi_of = reinterpret_cast<const char* (*)()>(::dlsym(handle, kind.abi_symbol));
  const char* missing = abi_of == nullptr ? kind.abi_symbol : nullptr;
  std::vector<void*> addresses;
  for (const char* symbol : kind.symbols) {
    addresses.push_back(::dlsym(handle, symbol));
    if (addresses.back() == nullptr && missing == nullptr) missing = symbol;
  }
  if (missing != nullptr) {
    throw RuntimeFailure(library.string() + " is not the " + kind.support + " of this toolkit: it lacks " + missing);
  }
  if (abi != abi_of()) {
    throw RuntimeFailure(library.string() + " belongs to another build: it is for \"" + abi_of() +
                         "\", this program is \"" + abi + "\"; install both together");
  }
  return addresses;
}

std::string loaded_library(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto path = line.find('/'), file = line.rfind('/') + 1;
    if (path != std::string::npos && line.compare(file, name.size(), name) == 0 &&
        line.find(".so", file) != std::string::npos)
      return line.substr(path);
  }
  return "";
}

}  // namespace fsdp
