// CSV and TSV as training data.
#include "fuzz_support.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/unpacked_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryFile memory;
  const auto path = memory.fill(fuzz::as_text(data, size));
  const bool packed = detail::is_packed(fuzz::as_text(data, size));
  for (const char separator : {',', '\t'}) {
    fuzz::refusal_is_fine([&] {
      const auto documents = detail::open_csv(path, "text", separator);
      for (std::string text; documents->next(text);) {
        if ((text.size() > size && !packed) || documents->bytes_read() > std::int64_t(size) ||
            documents->where().empty())
          std::abort();
      }
    });
  }
  return 0;
}
