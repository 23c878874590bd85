// One safetensors file: header and data.
#include <vector>

#include "fuzz_source.hpp"
#include "lib/formats/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryFile memory;
  const auto path = memory.fill(fuzz::as_text(data, size));
  fuzz::refusal_is_fine([&] {
    const SafetensorsReader reader(path);
    for (const auto& [name, entry] : reader.tensors()) {
      if (entry.end - entry.begin > size) std::abort();
      std::vector<std::byte> out(entry.end - entry.begin);
      reader.read_rows(name, 0, entry.shape.empty() ? 1 : entry.shape[0], out);
    }
  });
  fuzz::read_source(path);
  return 0;
}
