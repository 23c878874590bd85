// A checkpoint of Megatron-core: its tensors under transformers' names, as args, common.pt and config.json tell.
#include <array>

#include "fuzz_folder.hpp"
#include "fuzz_source.hpp"
#include "lib/checkpoints/model/model_source.hpp"

namespace {
constexpr std::array<std::string_view, 5> names = {".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt",
                                                   "config.json"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryDirectory memory;
  const auto path = memory.fill(fuzz::as_text(data, size), names);
  fuzz::read_source_of([&] {
    try {
      return open_model_source(path);
    } catch (const RequestError& error) {  // sizes that the user should name
      throw FormatError(error.what());
    }
  });
  return 0;
}
