// A pickle, and all queries of its values.
#include <memory>
#include <nlohmann/json.hpp>

#include "fuzz_support.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/torch_blob.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  fuzz::refusal_is_fine([&] {
    const auto text = std::make_shared<const std::string>(fuzz::as_text(data, size));
    const auto document = read_pickle({text, 0, "input", 0}, {.max_values = 100'000});
    if (document.root == nullptr || document.length_bytes > size) std::abort();
    fuzz::refusal_is_fine([&] { pickle_to_json(*document.root, "input"); });
    for (const auto& value : document.values) {
      describe(value);
      fuzz::refusal_is_fine([&] { tensor_view(value, "input"); });
    }
  });
  return 0;
}
