#pragma once
// Reads a checkpoint of any format as the programs do.
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "fuzz_support.hpp"
#include "lib/base/dtype.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp::fuzz {

/// Opens the checkpoint at `path`, reads every tensor and value, and compares the checksums.
inline void read_source(const std::filesystem::path& path) {
  refusal_is_fine([&] {
    const auto source = open_source(path);
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

}  // namespace fsdp::fuzz
