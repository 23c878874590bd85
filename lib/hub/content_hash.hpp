#pragma once
// The hashes that identify file content on the hub: SHA-256 of the bytes for large files, git's blob SHA-1 for others.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace fsdp {

enum class HashKind { sha256, git_sha1 };

/// The kind of a hash, by its length: 64 lower-case hexadecimal digits are SHA-256, 40 are git's SHA-1.
/// \throws FormatError when `hex` is neither
HashKind hash_kind(const std::string& hex);

/// True for 40 lower-case hexadecimal digits, the form of a commit id.
bool is_commit_id(const std::string& text);

/// Computes the hash of content that arrives in pieces.
class ContentHash {
 public:
  /// \param size_bytes  size of the whole content, which is part of git's hash: sha1("blob SIZE\0" + bytes)
  ContentHash(HashKind kind, std::uint64_t size_bytes);
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;
  ~ContentHash();

  void update(std::span<const std::byte> bytes);
  /// Returns the hash as lower-case hexadecimal digits. Call once; no update() may follow.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hashes the file at `path`, which is read in pieces of 1 MiB.
/// \param stop  called between pieces (may be empty); when it returns true, the result is an empty string
/// \throws IoError; FormatError when the file shrinks while it is read
std::string hash_file(const std::filesystem::path& path, HashKind kind, const std::function<bool()>& stop = {});

}  // namespace fsdp
