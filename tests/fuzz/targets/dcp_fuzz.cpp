// A DCP directory: .metadata (or one per rank) and data files.
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "fuzz_source.hpp"
#include "lib/formats/dcp.hpp"
#include "lib/formats/dtype.hpp"

namespace {
constexpr std::array<std::string_view, 6> names = {".metadata",    "__0_0.distcp", "__1_0.distcp",
                                                   "__0.metadata", "__1.metadata", "other"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  const auto& directory = memory.fill(fuzz::as_text(data, size), names);
  fuzz::refusal_is_fine([&] {
    const DcpReader reader(directory);
    for (const auto& entry : reader.tensors()) {
      fuzz::refusal_is_fine([&] {
        const auto& [key, tensor] = entry;
        const auto count = num_elements(tensor.shape);
        if (count > static_cast<std::int64_t>(fuzz::max_read_bytes / dtype_size_bytes(tensor.dtype))) return;
        std::vector<std::byte> out(static_cast<std::size_t>(count) * dtype_size_bytes(tensor.dtype));
        reader.read_block(key, Shape(tensor.shape.size(), 0), tensor.shape, out);
      });
    }
    for (const auto& key : reader.value_keys()) {
      fuzz::refusal_is_fine([&] { reader.value(key); });
    }
  });
  fuzz::read_source(directory);
  return 0;
}
