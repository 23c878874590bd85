#pragma once
// Reads a checkpoint of any format as the programs do.
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "fuzz_support.hpp"
#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/source/source.hpp"

namespace fsdp::fuzz {

/// Opens a checkpoint, reads every tensor and value, and compares the checksums. \param open  returns the source
template <typename Open>
void read_source_of(const Open& open) {
  refusal_is_fine([&] {
    const auto source = open();
    std::vector<ReadSum> sums;
    for (std::size_t i = 0; i < source->tensors().size(); ++i) {
      refusal_is_fine([&] {
        const auto& tensor = source->tensors()[i];
        const bool whole = tensor.size_bytes() <= max_read_bytes;
        const std::uint64_t count = whole ? static_cast<std::uint64_t>(num_elements(tensor.shape)) : 16;
        std::vector<std::byte> out(count * dtype_size_bytes(tensor.dtype));
        source->read(i, 0, count, out, &sums);
      });
    }
    for (std::size_t i = 0; i < source->values().size(); ++i) {
      refusal_is_fine([&] {
        if (source->value(i).value == nullptr) std::abort();
      });
    }
    source->verify_sums(std::move(sums));
  });
}

inline void read_source(const std::filesystem::path& path) {
  read_source_of([&] { return open_source(path); });
}

}  // namespace fsdp::fuzz
