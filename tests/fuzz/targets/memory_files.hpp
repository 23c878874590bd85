#pragma once
// Files that exist only inside this process, so that an execution of a fuzz target makes no system call: the calls of
// the C library that lib/ makes on paths below `root` are answered from memory.
#include <dirent.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::fuzz {

class MemoryFiles {
 public:
  static constexpr std::string_view root = "/fsdp-fuzz-input";  // no folder of the machine

  /// There is one object at a time. \throws std::runtime_error when this C++ library reads files by other calls
  MemoryFiles();
  ~MemoryFiles();
  MemoryFiles(const MemoryFiles&) = delete;
  MemoryFiles& operator=(const MemoryFiles&) = delete;

  void clear() { num_entries_ = 1; }
  /// Adds a file and its folders, or replaces the content of a file. \param name  relative to `root`
  void add(std::string_view name, std::string_view bytes);

  // For the calls of the C library.
  struct Entry {
    std::string path, bytes;
    bool is_folder = false;
  };
  /// An open directory.
  struct Listing {
    bool is_open = false;
    std::size_t folder = 0, next = 0;  ///< numbers of entries
    dirent current{};
  };
  static constexpr std::size_t npos = ~std::size_t{0};
  /// The number of the entry, or npos.
  std::size_t find(std::string_view path) const;
  std::size_t num_entries() const { return num_entries_; }
  const Entry& entry(std::size_t number) const { return entries_[number]; }
  std::array<Listing, 8>& listings() { return listings_; }

 private:
  Entry& new_entry(std::string_view path, bool is_folder);

  std::vector<Entry> entries_;  // the first is `root`; those after num_entries_ keep their memory for the next input
  std::size_t num_entries_ = 0;
  std::array<Listing, 8> listings_;
};

}  // namespace fsdp::fuzz
