// A zip archive: its directory and every entry.
#include "fuzz_support.hpp"
#include "lib/base/files/file.hpp"
#include "lib/formats/zip.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryFile memory;
  fuzz::refusal_is_fine([&] {
    const File file = File::open_read(memory.fill(fuzz::as_text(data, size)));
    const ZipReader zip(file, 0, size);
    for (const auto& entry : zip.entries()) {
      fuzz::refusal_is_fine([&] {
        if (zip.read_text(entry).size() > size) std::abort();
      });
    }
    fuzz::refusal_is_fine([&] { zip.find_suffix("/data.pkl"); });
  });
  return 0;
}
