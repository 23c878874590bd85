#include "tests/gpu/stub_card.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

namespace stub {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kAddresses_bytes = std::size_t{1} << 45;
constexpr std::size_t kPage_bytes = 2 * kMiB;  // allocation granularity of cudaMalloc on a GPU

struct Kind {
  const char* name;
  int capability;
  int multiprocessors;
  std::size_t shared_kib;
  int threads_per_multiprocessor;
  std::size_t total_mib;
};
// Shared memory and threads: CUDA programming guide, technical specifications per compute capability.
constexpr std::array kKinds{Kind{"a100-80g", 80, 108, 163, 2048, 81050}, Kind{"a100-40g", 80, 108, 163, 2048, 40338},
                            Kind{"h100", 90, 132, 227, 2048, 81000},     Kind{"t4", 75, 40, 64, 1024, 14910},
                            Kind{"a10", 86, 72, 99, 1536, 22580},        Kind{"l4", 89, 58, 99, 1536, 22580},
                            Kind{"b200", 100, 148, 227, 2048, 182000},   Kind{"h200", 90, 132, 227, 2048, 143155}};

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "stub driver: %s\n", what);
  std::abort();
}

std::size_t bytes_from(const char* variable, std::size_t otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const auto value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') stop("FSDP_STUB_TOTAL and FSDP_STUB_OUTSIDE are whole numbers of bytes");
  return value;
}

Card make_gpu() {
  const char* wish = std::getenv("FSDP_STUB_GPU");
  for (const auto& kind : kKinds) {
    if (std::strcmp(kind.name, wish == nullptr ? kKinds[0].name : wish) != 0) continue;
    return {kind.name,
            kind.capability / 10,
            kind.capability % 10,
            kind.multiprocessors,
            kind.shared_kib * 1024,
            kind.threads_per_multiprocessor,
            bytes_from("FSDP_STUB_TOTAL", kind.total_mib * kMiB),
            bytes_from("FSDP_STUB_OUTSIDE", 0)};
  }
  stop("FSDP_STUB_GPU is not a card that it knows");
}

}  // namespace

namespace {

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::vector<Place> all_places(int slices) {
  std::vector<Place> all;
  for (int card = 0; card < number_from("FSDP_STUB_CARDS", 1); ++card) {
    for (int slice = 0; slice < std::max(1, slices); ++slice) {
      Place place{.card = card};
      place.uuid[14] = static_cast<char>(slices > 0 ? slice + 1 : 0);
      place.uuid[15] = static_cast<char>(card + 1);
      all.push_back(place);
    }
  }
  return all;
}

/// As CUDA reads CUDA_VISIBLE_DEVICES: what follows a word that names no device does not count.
std::vector<Place> visible_places() {
  const int slices = number_from("FSDP_STUB_SLICES", 0);
  auto places = all_places(slices);
  if (const char* text = std::getenv("CUDA_VISIBLE_DEVICES"); text != nullptr) {
    const auto all = std::exchange(places, {});
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
      const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
      const auto found = std::find_if(all.begin(), all.end(), [&](const Place& place) {
        return is_number ? std::to_string(&place - all.data()) == word
                         : !word.empty() && place.name().starts_with(word);
      });
      if (found == all.end()) break;
      places.push_back(*found);
    }
  }
  if (slices > 0 && places.size() > 1) places.resize(1);
  return places;
}

}  // namespace

std::string Place::name() const {
  std::string text = uuid[14] == 0 ? "GPU" : "MIG";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned char>(uuid[i]));
    text += (i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(hex.data());
  }
  return text;
}

const std::vector<Place>& visible() {
  static const auto places = visible_places();
  return places;
}

Memory::Memory(const Card& card) : capacity_bytes_(card.total_bytes) {
  // Inaccessible addresses: a program that reads what a kernel would have written crashes instead of reading garbage.
  void* base = ::mmap(nullptr, kAddresses_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) stop("cannot set addresses aside (ulimit -v?)");
  const auto place = reinterpret_cast<std::size_t>(base);
  base_ = static_cast<std::byte*>(base) + ((place + kPage_bytes - 1) / kPage_bytes * kPage_bytes - place);
  capacity_bytes_ -= card.outside_bytes < card.total_bytes ? card.outside_bytes : card.total_bytes;
}
Memory::~Memory() = default;  // never called: the process ends first

void* Memory::allocate(std::size_t bytes) {
  const auto pages = (bytes + kPage_bytes - 1) / kPage_bytes * kPage_bytes;
  const std::scoped_lock lock(mutex_);
  if (pages > capacity_bytes_ - used_bytes_) return nullptr;
  if (next_ + pages > kAddresses_bytes - kPage_bytes) stop("out of addresses");
  void* address = base_ + next_;
  next_ += pages;
  used_bytes_ += pages;
  blocks_.emplace(address, pages);
  return address;
}

bool Memory::free(void* address) {
  const std::scoped_lock lock(mutex_);
  const auto it = blocks_.find(address);
  if (it == blocks_.end()) return false;
  used_bytes_ -= it->second;
  blocks_.erase(it);
  return true;
}

bool Memory::contains(const void* address) const {
  const auto* place = static_cast<const std::byte*>(address);
  return place >= base_ && place < base_ + (kAddresses_bytes - kPage_bytes);
}

bool Memory::holds(const void* address, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return false;
  --after;
  const auto offset =
      static_cast<std::size_t>(static_cast<const std::byte*>(address) - static_cast<const std::byte*>(after->first));
  return offset <= after->second && bytes <= after->second - offset;
}

std::size_t Memory::free_bytes() {
  const std::scoped_lock lock(mutex_);
  return capacity_bytes_ - used_bytes_;
}

const Card& card() {
  static const Card the_gpu = make_gpu();
  return the_gpu;
}

Memory& memory() {
  static auto* const the_memory = new Memory(card());  // never destroyed, because tensors may outlive static objects
  return *the_memory;
}

}  // namespace stub
