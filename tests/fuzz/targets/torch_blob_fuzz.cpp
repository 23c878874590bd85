// One item of a DCP data file: a torch.save archive with one tensor or one value.
#include <nlohmann/json.hpp>
#include <vector>

#include "fuzz_support.hpp"
#include "lib/formats/torch_blob.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryFile memory;
  fuzz::refusal_is_fine([&] {
    const File file = File::open_read(memory.fill(fuzz::as_text(data, size)));
    const TorchBlob blob(file, 0, size);
    fuzz::refusal_is_fine([&] { blob.value(); });
    const auto view = blob.tensor();
    if (view.length_bytes() > fuzz::max_read_bytes) return;
    std::vector<std::byte> out(view.length_bytes());
    blob.read_tensor(view, out);
  });
  return 0;
}
