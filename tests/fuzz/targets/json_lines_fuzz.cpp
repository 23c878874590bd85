// JSON Lines as training data.
#include "fuzz_support.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/unpacked_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static fuzz::MemoryFile memory;
  const auto path = memory.fill(fuzz::as_text(data, size));
  const bool packed = detail::is_packed(fuzz::as_text(data, size));
  fuzz::refusal_is_fine([&] {
    const auto documents = detail::open_json_lines(path, "text");
    for (std::string text; documents->next(text);) {
      // A text is never longer than its JSON: an escape of six bytes becomes at most three, and joining a list adds
      // one space per element.
      if ((text.size() > size && !packed) || documents->bytes_read() > std::int64_t(size) || documents->where().empty())
        std::abort();
    }
  });
  return 0;
}
