#include "lib/benchmarks/tasks/python_random.hpp"

#include <array>
#include <bit>
#include <numeric>
#include <sstream>
#include <unordered_set>

namespace fsdp {
namespace {

/// The state of init_by_array(), as std::mt19937 reads it: its own seeds are mixed otherwise.
std::mt19937 seeded(std::uint64_t seed) {
  constexpr std::size_t kWords = std::mt19937::state_size;
  std::vector<std::uint32_t> key{static_cast<std::uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<std::uint32_t>(seed >> 32));
  std::array<std::uint32_t, kWords> state{};
  state[0] = 19650218;
  for (std::uint32_t i = 1; i < kWords; ++i) state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  std::size_t i = 1, j = 0;
  const auto mixed = [&](std::uint32_t factor) { return state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * factor); };
  const auto go_on = [&] {
    if (++i < kWords) return;
    state[0] = state[kWords - 1];
    i = 1;
  };
  for (std::size_t round = 0; round < kWords; ++round) {
    state[i] = mixed(1664525U) + key[j] + static_cast<std::uint32_t>(j);
    go_on();
    j = (j + 1) % key.size();
  }
  for (std::size_t round = 1; round < kWords; ++round) {
    state[i] = mixed(1566083941U) - static_cast<std::uint32_t>(i);
    go_on();
  }
  state[0] = 0x80000000U;
  std::stringstream text;
  for (const auto word : state) text << word << ' ';
  text << kWords;  // words that are used up
  std::mt19937 made;
  text >> made;
  return made;
}

}  // namespace

PythonRandom::PythonRandom(std::int64_t seed)
    : words_(seeded(seed < 0 ? 0 - static_cast<std::uint64_t>(seed) : static_cast<std::uint64_t>(seed))) {}

double PythonRandom::real() {
  const auto high = words_() >> 5, low = words_() >> 6;
  return (static_cast<double>(high) * 67108864.0 + static_cast<double>(low)) / 9007199254740992.0;
}

std::size_t PythonRandom::below(std::size_t n) {
  const auto unused = 32 - std::bit_width(n);
  for (;;) {
    const std::size_t drawn = words_() >> unused;
    if (drawn < n) return drawn;
  }
}

std::vector<std::size_t> PythonRandom::sample(std::size_t size, std::size_t count) {
  std::vector<std::size_t> drawn(count);
  // Python draws from a list where that is smaller than a set of what was drawn: 21 elements and 4^ceil(log4(3 count)).
  std::size_t of_set = 21;
  if (count > 5) {
    std::size_t power = 1;
    while (power < 3 * count) power *= 4;
    of_set += power;
  }
  if (size <= of_set) {
    std::vector<std::size_t> pool(size);
    std::iota(pool.begin(), pool.end(), 0);
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = below(size - i);
      drawn[i] = pool[at];
      pool[at] = pool[size - i - 1];
    }
    return drawn;
  }
  std::unordered_set<std::size_t> taken;
  for (auto& one : drawn) {
    do one = below(size);
    while (!taken.insert(one).second);
  }
  return drawn;
}

}  // namespace fsdp
