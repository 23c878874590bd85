#pragma once
// Documents with the same ids, found by a hash of the ids.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lib/base/files/file.hpp"

namespace fsdp {

/// 64 bits: among a thousand million documents, two that differ have one hash with a probability of 3 %.
std::uint64_t hash_of_ids(std::span<const std::int32_t> ids);

/// A set of hashes, of 16 bytes each.
class SeenHashes {
 public:
  /// \return false if it was there already
  bool insert(std::uint64_t hash);
  bool contains(std::uint64_t hash) const;
  std::size_t size() const { return size_; }

 private:
  std::size_t place_of(std::uint64_t hash) const;
  void grow();

  std::vector<std::uint64_t> slots_;  ///< a power of two of them; 0: empty
  std::size_t size_ = 0;
  bool has_zero_ = false;
};

/// The number of a document in its source, as its file counts them.
struct DocumentPlace {
  std::uint32_t source = 0;
  std::uint64_t number = 0;
  auto operator<=>(const DocumentPlace&) const = default;
};

/// Groups documents by their hashes. Memory is bounded: sorted runs of documents wait in a file without a name.
class EqualDocuments {
 public:
  /// \param beside  the file without a name is made in its folder
  /// \param most    documents in memory, 24 bytes each
  explicit EqualDocuments(std::filesystem::path beside, std::size_t most = std::size_t{8} << 20);

  /// \throws IoError
  void add(std::uint64_t hash, const DocumentPlace& place);
  /// Calls `body` with the places of each two or more documents of one hash, sorted. Ends the object's use.
  /// \throws IoError
  void for_groups(const std::function<void(std::span<const DocumentPlace>)>& body);

 private:
  struct Entry {
    std::uint64_t hash;
    DocumentPlace place;
    auto operator<=>(const Entry&) const = default;
  };
  class Run;
  void write_run();

  std::filesystem::path beside_;
  std::size_t most_;
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> run_sizes_;  ///< entries of each run in the file
  File file_;
};

}  // namespace fsdp
