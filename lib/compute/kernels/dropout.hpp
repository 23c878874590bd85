// Included by isa.cpp inside a per-instruction-set namespace. Dropout whose mask is a function of keys.

/// splitmix64's finaliser (Steele, Lea, Flood 2014): a counter becomes 64 random bits.
inline std::uint64_t mix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

template <typename T>
void dropout(const DropoutArgs& a, std::int64_t begin, std::int64_t end) {
  const float keep_scale = 1.0f / (1.0f - a.probability);
  const auto threshold = static_cast<std::uint64_t>(static_cast<double>(a.probability) * 16777216.0);
  for (std::int64_t t = begin; t < end; ++t) {
    T* x = static_cast<T*>(a.x_TD) + t * a.dim;
    for (std::int64_t j = 0; j < a.dim; ++j) {
      const bool drop = (mix64(a.key_T[t] + static_cast<std::uint64_t>(j)) >> 40) < threshold;
      store(x, j, drop ? 0.0f : load(x, j) * keep_scale);
    }
  }
}
