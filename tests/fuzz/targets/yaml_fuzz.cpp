// YAML of config files.
#include "fuzz_support.hpp"
#include "lib/formats/yaml/yaml_value.hpp"

namespace {

/// Bytes of all texts of a value. Aliases make it larger than the input.
std::size_t bytes_of(const fsdp::YamlValue& value) {
  auto bytes = value.text.size();
  for (const auto& item : value.items) bytes += bytes_of(item);
  for (const auto& entry : value.entries) bytes += entry.key.size() + bytes_of(entry.value);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  constexpr std::size_t most_bytes = 17u << 20;
  const auto text = fuzz::as_text(data, size);
  fuzz::refusal_is_fine([&] {
    const auto bytes = bytes_of(read_yaml(text));
    // A number may be longer in decimal: 0x... and 1:00:00.
    if (bytes > most_bytes || (text.find('*') == text.npos && bytes > 20 * size + 20)) std::abort();
  });
  return 0;
}
