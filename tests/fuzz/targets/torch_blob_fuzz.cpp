// One item of a DCP data file: a torch.save archive with one tensor or one value.
#include <algorithm>

#include "fuzz_support.hpp"
#include "tests/support/torch_blob_reading.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryFile memory;
  fuzz::refusal_is_fine([&] {
    const File file = File::open_read(memory.fill(fuzz::as_text(data, size)));
    const TorchBlob blob(file, 0, size);
    fuzz::refusal_is_fine([&] { test::value_of(blob); });
    const auto view = test::view_of(blob);
    if (!view || std::max(view->length_bytes(), view->storage_bytes) > fuzz::max_read_bytes) return;
    test::elements_of(blob, *view);
  });
  return 0;
}
