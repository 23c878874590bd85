#pragma once
// The record of a rank, in memory that other processes read: PyTorch's flight recorder is the model
// (torch/csrc/distributed/c10d/FlightRecorder.hpp), which keeps its entries in the process alone.
//
// A reader may come at any time, also after the rank was killed in the middle of a word. So an entry is written word by
// word, its number last, and is valid where the number is the same before and after the other words were read. Each
// word is stored and loaded in order (release, acquire) instead of by fences, which ThreadSanitizer does not know.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace fsdp {

enum class FlightKind : std::uint8_t {
  work,        ///< of the host: reads samples, computes, writes a checkpoint
  all_gather,  ///< of tensors
  all_to_all,  ///< each rank sends each rank a part; a reduction, too
  reduce_scatter,
  all_reduce,
  agreement,  ///< of a few numbers
  broadcast,
  collection,  ///< of texts on one rank
  barrier,
  counter  ///< in memory that the ranks share
};
inline constexpr std::array<std::string_view, 10> kFlightKinds{
    "work",      "all-gather", "all-to-all", "reduce-scatter", "all-reduce",
    "agreement", "broadcast",  "collection", "barrier",        "counter"};

/// Times are of the host's CLOCK_MONOTONIC.
struct FlightEvent {
  std::uint64_t number = 0;  ///< of this rank's events, from 1 on; 0: none
  std::int64_t begin_ns = 0;
  std::int64_t wait_ns = 0;  ///< when the rank began to wait for it; 0: it has not
  std::int64_t end_ns = 0;   ///< 0: it goes on
  std::uint64_t bytes = 0;   ///< sent by this rank
  std::uint32_t step = 0;    ///< the step under way, from 1 on; 0: none
  std::uint32_t round = 0;   ///< of its group's collectives, from 1 on; 0: no collective
  std::int32_t peer = -1;    ///< world rank whose counter is waited for
  std::uint16_t micro_batch = 0;
  std::uint16_t name = 0;  ///< place in FlightMap::names
  FlightKind kind = FlightKind::work;
  std::uint8_t group = 0;  ///< place in FlightMap::groups
  std::array<std::uint8_t, 6> unused{};
};
static_assert(sizeof(FlightEvent) == 64 && std::is_trivially_copyable_v<FlightEvent>);

/// A place for an entry.
class FlightSlot {
 public:
  using Words = std::array<std::uint64_t, sizeof(FlightEvent) / 8>;

  void write(const FlightEvent& event) {
    const auto words = std::bit_cast<Words>(event);
    words_[0].store(0, std::memory_order_relaxed);
    for (std::size_t i = 1; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_release);
    words_[0].store(words[0], std::memory_order_release);
  }
  void clear() { words_[0].store(0, std::memory_order_release); }
  /// \return an event of number 0 where there is none, or it was being written
  FlightEvent read() const {
    Words words;
    words[0] = words_[0].load(std::memory_order_acquire);
    for (std::size_t i = 1; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (words[0] == 0 || words_[0].load(std::memory_order_relaxed) != words[0]) return {};
    return std::bit_cast<FlightEvent>(words);
  }

 private:
  std::array<std::atomic<std::uint64_t>, sizeof(FlightEvent) / 8> words_;
};
static_assert(sizeof(FlightSlot) == sizeof(FlightEvent) && std::atomic<std::uint64_t>::is_always_lock_free);

/// Ranks that make collectives together.
struct FlightGroup {
  std::uint64_t identity = 0;            ///< of its members: equal on all of them
  std::int32_t size = 0;                 ///< 0: there is no such group
  std::atomic<std::uint32_t> rounds{0};  ///< collectives that this rank has begun
};

/// A few words that one thread writes now and then.
class FlightText {
 public:
  static constexpr std::size_t kBytes = 256;

  /// \param text  cut to what fits
  void write(std::string_view text) {
    std::array<char, kBytes> bytes{};
    std::memcpy(bytes.data(), text.data(), std::min(text.size(), kBytes - 1));
    std::array<std::uint64_t, kBytes / 8> words;
    std::memcpy(words.data(), bytes.data(), kBytes);
    const auto version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);  // odd: it is being written
    for (std::size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  /// \return "" where it was being written
  std::string read() const {
    const auto version = version_.load(std::memory_order_acquire);
    std::array<std::uint64_t, kBytes / 8> words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (version % 2 != 0 || version_.load(std::memory_order_relaxed) != version) return "";
    std::array<char, kBytes + 1> bytes{};
    std::memcpy(bytes.data(), words.data(), kBytes);
    return bytes.data();
  }

 private:
  std::atomic<std::uint64_t> version_;
  std::array<std::atomic<std::uint64_t>, kBytes / 8> words_;
};

/// Memory that is shared with readers. All zeros at first.
struct FlightMap {
  static constexpr auto kMagic = std::bit_cast<std::uint64_t>(std::array{'f', 's', 'd', 'p', 'f', 'l', 't', '1'});
  static constexpr std::size_t kEvents = 4096, kOpen = 64, kGroups = 32, kNames = 2048;

  std::atomic<std::uint64_t> magic{0};  ///< written last
  std::int32_t rank = 0, ranks = 0;
  std::array<char, 1024> process{};          ///< ProcessIdentity::to_json()
  std::array<char, 1024> run{};              ///< its folder; "": none
  std::array<char, 256> memory_events{};     ///< file in which the kernel counts what it killed for memory
  std::int64_t killed_for_memory = -1;       ///< what it counted at the start; -1: unknown
  std::int64_t clock_offset_ns = 0;          ///< CLOCK_MONOTONIC plus this is time since 1970 on rank 0's clock
  std::atomic<std::uint64_t> num_ended{0};   ///< events that were ever in `ended`
  std::atomic<std::uint64_t> num_groups{0};  ///< these are in `groups`
  std::array<FlightSlot, kOpen> open;
  FlightText blocked;  ///< what blocks the rank's main thread in the kernel: "fsync /scratch/step-8/0.distcp"
  std::array<FlightGroup, kGroups> groups;
  std::array<std::array<char, 40>, kNames> names;
  std::array<FlightSlot, kEvents> ended;  ///< a ring
};

}  // namespace fsdp
