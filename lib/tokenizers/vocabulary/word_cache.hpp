#pragma once
// Ids of words that were encoded before: most words of a text are there again soon.
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace fsdp {

/// A table of fixed size for one thread; a word replaces another one in its place.
class WordCache {
 public:
  static constexpr std::size_t kMostBytes = 30;  ///< of a word
  static constexpr std::size_t kMostIds = 8;

  WordCache() : slots_(kSlots) {}

  /// Ids of a word of 1 to kMostBytes bytes; empty when it is not there.
  std::span<const std::int32_t> find(std::string_view word) const {
    const auto& slot = slots_[place_of(word)];
    const bool is_it = slot.bytes == word.size() && std::memcmp(slot.word.data(), word.data(), word.size()) == 0;
    return is_it ? std::span(slot.ids).first(slot.count) : std::span<const std::int32_t>();
  }

  /// Keeps 1 to kMostIds ids, others not.
  void keep(std::string_view word, std::span<const std::int32_t> ids) {
    if (ids.empty() || ids.size() > kMostIds) return;
    auto& slot = slots_[place_of(word)];
    std::memcpy(slot.word.data(), word.data(), word.size());
    slot.bytes = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(slot.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  struct Slot {
    std::array<char, kMostBytes> word;
    std::uint8_t bytes = 0, count = 0;
    std::array<std::int32_t, kMostIds> ids;
  };
  static constexpr std::size_t kSlots = std::size_t{1} << 16;  // 4 MiB

  static std::size_t place_of(std::string_view word) {
    std::uint64_t hash = word.size();
    for (std::size_t at = 0; at < word.size(); at += sizeof(std::uint64_t)) {
      std::uint64_t part = 0;
      std::memcpy(&part, word.data() + at, word.size() - at < sizeof part ? word.size() - at : sizeof part);
      hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return (hash * 0x9e3779b97f4a7c15u) >> 48;
  }

  std::vector<Slot> slots_;
};

/// Caches of one vocabulary, of which each thread takes one for as long as it encodes.
class WordCaches {
 public:
  /// Takes a cache, and gives it back at the end of its life.
  class Lease {
   public:
    explicit Lease(WordCaches& all) : all_(all), cache_(all.take()) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { all_.give(std::move(cache_)); }
    WordCache& operator*() const { return *cache_; }
    WordCache* operator->() const { return cache_.get(); }

   private:
    WordCaches& all_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<WordCache>();
    auto cache = std::move(free_.back());
    free_.pop_back();
    return cache;
  }
  void give(std::unique_ptr<WordCache> cache) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(cache));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

}  // namespace fsdp
