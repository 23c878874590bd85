#undef _FORTIFY_SOURCE  // with it, headers define some of these functions
#include "memory_files.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <stdexcept>

#include "lib/base/files/file.hpp"

namespace fsdp::fuzz {
namespace {

MemoryFiles* files = nullptr;  // of the process, as its system calls are

constexpr int kFirstDescriptor = 1 << 24;  // the kernel's are smaller

bool is_ours(const char* path) {
  return files != nullptr && std::strncmp(path, MemoryFiles::root.data(), MemoryFiles::root.size()) == 0;
}
bool is_ours(int descriptor) { return descriptor >= kFirstDescriptor; }

/// The C library's function that the one of this file replaces.
template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int fail(int error) {
  errno = error;
  return -1;
}

const MemoryFiles::Entry& entry_of(int descriptor) {
  return files->entry(static_cast<std::size_t>(descriptor - kFirstDescriptor));
}

int open_entry(const char* path, int flags) {
  const auto number = files->find(path);
  if (number == MemoryFiles::npos) return fail(ENOENT);
  if ((flags & O_ACCMODE) != O_RDONLY) return fail(EROFS);
  if ((flags & O_DIRECTORY) != 0 && !files->entry(number).is_folder) return fail(ENOTDIR);
  return kFirstDescriptor + static_cast<int>(number);
}

int describe(const MemoryFiles::Entry& entry, struct stat* out) {
  *out = {};
  out->st_mode = entry.is_folder ? S_IFDIR | 0755 : S_IFREG | 0644;
  out->st_nlink = 1;
  out->st_uid = ::geteuid();
  out->st_size = static_cast<off_t>(entry.bytes.size());
  return 0;
}

int describe(const char* path, struct stat* out) {
  const auto number = files->find(path);
  return number == MemoryFiles::npos ? fail(ENOENT) : describe(files->entry(number), out);
}

MemoryFiles::Listing* listing_of(DIR* directory) {
  if (files == nullptr) return nullptr;
  for (auto& listing : files->listings())
    if (static_cast<void*>(&listing) == static_cast<void*>(directory)) return &listing;
  return nullptr;
}

dirent* next_of(MemoryFiles::Listing& listing) {
  const std::string_view folder = files->entry(listing.folder).path;
  while (listing.next < files->num_entries()) {
    const auto& entry = files->entry(listing.next++);
    const std::string_view path = entry.path;
    if (path.size() <= folder.size() + 1 || path.rfind('/') != folder.size() || !path.starts_with(folder)) continue;
    const auto name = path.substr(folder.size() + 1);
    if (name.size() >= sizeof(listing.current.d_name)) continue;
    std::memcpy(listing.current.d_name, name.data(), name.size());
    listing.current.d_name[name.size()] = '\0';
    listing.current.d_type = entry.is_folder ? DT_DIR : DT_REG;
    return &listing.current;
  }
  return nullptr;
}

}  // namespace

MemoryFiles::MemoryFiles() {
  if (files != nullptr) throw std::logic_error("a second object of MemoryFiles");
  new_entry(root, true);
  files = this;
  add("folder/file", "bytes");
  const auto folder = std::filesystem::path(root) / "folder";
  const std::filesystem::directory_iterator listed(folder);
  if (!std::filesystem::exists(folder) || listed->path() != folder / "file" ||
      read_text_file(folder / "file") != "bytes")
    throw std::runtime_error("files in memory are not seen: this C++ library makes calls that memory_files.cpp lacks");
  clear();
}

MemoryFiles::~MemoryFiles() { files = nullptr; }

MemoryFiles::Entry& MemoryFiles::new_entry(std::string_view path, bool is_folder) {
  if (entries_.size() == num_entries_) entries_.emplace_back();
  Entry& entry = entries_[num_entries_++];
  entry.path = path;
  entry.bytes.clear();
  entry.is_folder = is_folder;
  return entry;
}

void MemoryFiles::add(std::string_view name, std::string_view bytes) {
  std::string path(root);
  for (auto slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1)) {
    path.append("/").append(name.substr(0, slash));
    if (find(path) == npos) new_entry(path, true);
    path.resize(root.size());
  }
  path.append("/").append(name);
  const auto known = find(path);
  (known == npos ? new_entry(path, false) : entries_[known]).bytes = bytes;
}

std::size_t MemoryFiles::find(std::string_view path) const {
  while (path.ends_with('/')) path.remove_suffix(1);
  for (std::size_t number = 0; number < num_entries_; ++number)
    if (entries_[number].path == path) return number;
  return npos;
}

}  // namespace fsdp::fuzz

// The calls that lib/base/files/file.cpp and std::filesystem make. These definitions come before those of the C
// library.
extern "C" {

// NOLINTBEGIN(cert-dcl50-cpp,cert-dcl58-cpp): their types are the C library's
int open(const char* path, int flags, ...) {
  using namespace fsdp::fuzz;
  if (is_ours(path)) return open_entry(path, flags);
  va_list rest;
  va_start(rest, flags);
  const auto mode = va_arg(rest, mode_t);
  va_end(rest);
  static auto* const next = real<int(const char*, int, ...)>("open");
  return next(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  using namespace fsdp::fuzz;
  if (is_ours(path)) return open_entry(path, flags);
  va_list rest;
  va_start(rest, flags);
  const auto mode = va_arg(rest, mode_t);
  va_end(rest);
  static auto* const next = real<int(int, const char*, int, ...)>("openat");
  return next(folder, path, flags, mode);
}

int close(int descriptor) {
  using namespace fsdp::fuzz;
  if (is_ours(descriptor)) return 0;
  static auto* const next = real<int(int)>("close");
  return next(descriptor);
}

int fcntl(int descriptor, int command, ...) {
  using namespace fsdp::fuzz;
  if (is_ours(descriptor)) return 0;
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  static auto* const next = real<int(int, int, ...)>("fcntl");
  return next(descriptor, command, argument);
}

ssize_t pread(int descriptor, void* out, size_t length, off_t offset) {
  using namespace fsdp::fuzz;
  if (is_ours(descriptor)) {
    const std::string_view bytes = entry_of(descriptor).bytes;
    const auto from = std::min(static_cast<std::size_t>(offset), bytes.size());
    const auto count = std::min(length, bytes.size() - from);
    std::memcpy(out, bytes.data() + from, count);
    return static_cast<ssize_t>(count);
  }
  static auto* const next = real<ssize_t(int, void*, size_t, off_t)>("pread");
  return next(descriptor, out, length, offset);
}

int stat(const char* path, struct stat* out) noexcept {
  using namespace fsdp::fuzz;
  if (is_ours(path)) return describe(path, out);
  static auto* const next = real<int(const char*, struct stat*)>("stat");
  return next(path, out);
}

int lstat(const char* path, struct stat* out) noexcept {
  using namespace fsdp::fuzz;
  if (is_ours(path)) return describe(path, out);
  static auto* const next = real<int(const char*, struct stat*)>("lstat");
  return next(path, out);
}

int fstat(int descriptor, struct stat* out) noexcept {
  using namespace fsdp::fuzz;
  if (is_ours(descriptor)) return describe(entry_of(descriptor), out);
  static auto* const next = real<int(int, struct stat*)>("fstat");
  return next(descriptor, out);
}

DIR* fdopendir(int descriptor) {
  using namespace fsdp::fuzz;
  if (!is_ours(descriptor)) {
    static auto* const next = real<DIR*(int)>("fdopendir");
    return next(descriptor);
  }
  for (auto& listing : files->listings()) {
    if (listing.is_open) continue;
    listing.is_open = true;
    listing.folder = static_cast<std::size_t>(descriptor - kFirstDescriptor);
    listing.next = 0;
    return static_cast<DIR*>(static_cast<void*>(&listing));
  }
  fail(EMFILE);
  return nullptr;
}

dirent* readdir(DIR* directory) {
  using namespace fsdp::fuzz;
  if (auto* const listing = listing_of(directory)) return next_of(*listing);
  static auto* const next = real<dirent*(DIR*)>("readdir");
  return next(directory);
}

int closedir(DIR* directory) {
  using namespace fsdp::fuzz;
  if (auto* const listing = listing_of(directory)) {
    listing->is_open = false;
    return 0;
  }
  static auto* const next = real<int(DIR*)>("closedir");
  return next(directory);
}
// NOLINTEND(cert-dcl50-cpp,cert-dcl58-cpp)

}  // extern "C"
