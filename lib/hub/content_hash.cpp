#include "lib/hub/content_hash.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

bool all_hex(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// OpenSSL fails here only when it is out of memory or its providers cannot be loaded.
void check(int result) {
  if (result != 1) throw IoError("libcrypto refuses to hash");
}

}  // namespace

HashKind hash_kind(const std::string& hex) {
  if (hex.size() == 64 && all_hex(hex)) return HashKind::sha256;
  if (hex.size() == 40 && all_hex(hex)) return HashKind::git_sha1;
  throw FormatError("\"" + hex.substr(0, 80) + "\" is neither a SHA-256 (64 hexadecimal digits) nor a SHA-1 (40)");
}

bool is_commit_id(const std::string& text) { return text.size() == 40 && all_hex(text); }

struct ContentHash::State {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context{EVP_MD_CTX_new()};
};

ContentHash::ContentHash(HashKind kind, std::uint64_t size_bytes) : state_(std::make_unique<State>()) {
  if (!state_->context) throw std::bad_alloc();
  check(EVP_DigestInit_ex(state_->context.get(), kind == HashKind::sha256 ? EVP_sha256() : EVP_sha1(), nullptr));
  if (kind == HashKind::git_sha1) {
    const auto head = "blob " + std::to_string(size_bytes);
    update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));
  }
}

ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;
ContentHash::~ContentHash() = default;

void ContentHash::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string ContentHash::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  check(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &length));
  std::string hex;
  for (unsigned i = 0; i < length; ++i) {
    for (const int nibble : {digest[i] >> 4, digest[i] & 15}) hex += "0123456789abcdef"[nibble];
  }
  return hex;
}

std::string hash_file(const std::filesystem::path& path, HashKind kind, const std::function<bool()>& stop) {
  std::error_code error;
  auto itself = std::filesystem::weakly_canonical(path, error);
  // Not File::open_read(), which refuses pointers of Git LFS: their hash is that of any file.
  const auto file = File::open_read_nofollow(error ? path : itself);
  const auto size = file.size_bytes();
  ContentHash hash(kind, size);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(size, 1 << 20));
  for (std::uint64_t at = 0; at < size;) {
    if (stop && stop()) return {};
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - at));
    file.read_at(at, piece);
    hash.update(piece);
    at += piece.size();
  }
  return hash.finish();
}

}  // namespace fsdp
