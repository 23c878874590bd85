#pragma once
// Hashes that name content on the hub: SHA-256 of the bytes for large files, git's blob SHA-1 for the others.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace fsdp {

enum class HashKind { sha256, git_sha1 };

/// The kind a hash of this length is of: 64 hexadecimal digits are SHA-256, 40 git's SHA-1.
/// \throws FormatError when it is neither
HashKind hash_kind(const std::string& hex);

/// True for 40 lower-case hexadecimal digits: what names a commit.
bool is_commit_id(const std::string& text);

/// Hashes content that comes in pieces.
class ContentHash {
 public:
  /// \param size_bytes  of the whole content; part of git's hash: sha1("blob SIZE\0" + bytes)
  ContentHash(HashKind kind, std::uint64_t size_bytes);
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;
  ~ContentHash();

  void update(std::span<const std::byte> bytes);
  /// Lower-case hexadecimal digits. Ends the hash: no update after it.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hash of the file at `path`, read in pieces. \throws IoError, FormatError when it shrinks meanwhile
/// \param stop  asked between pieces (may be empty); true ends with an empty result
std::string hash_file(const std::filesystem::path& path, HashKind kind, const std::function<bool()>& stop = {});

}  // namespace fsdp
