#pragma once
// Fixtures with their expected content, and reading of whole tensors.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

namespace fsdp::test {

/// The input of a fixture: a directory `ckpt`, a file `ckpt.pt`, or safetensors beside the expected content.
inline std::filesystem::path input_of(const std::filesystem::path& fixture) {
  for (const auto* name : {"ckpt", "ckpt.pt"}) {
    if (std::filesystem::exists(fixture / name)) return fixture / name;
  }
  return fixture;
}

inline nlohmann::json truth_of(const std::filesystem::path& fixture) {
  return nlohmann::json::parse(read_text_file(fixture / "expected.json"));
}

inline std::size_t number_of(const Source& source, const std::string& name) {
  const auto& tensors = source.tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  REQUIRE_MESSAGE(found != tensors.end(), "no tensor ", name);
  return static_cast<std::size_t>(found - tensors.begin());
}

inline Bytes read_whole(const Source& source, std::size_t tensor, std::vector<ReadSum>* sums = nullptr) {
  Bytes bytes(source.tensors()[tensor].size_bytes());
  source.read(tensor, 0, static_cast<std::uint64_t>(num_elements(source.tensors()[tensor].shape)), bytes, sums);
  return bytes;
}

/// Reads a tensor in pieces of `piece` elements.
inline Bytes read_pieces(const Source& source, std::size_t tensor, std::uint64_t piece,
                         std::vector<ReadSum>* sums = nullptr) {
  const auto& wanted = source.tensors()[tensor];
  const auto total = static_cast<std::uint64_t>(num_elements(wanted.shape));
  const std::size_t element = dtype_size_bytes(wanted.dtype);
  Bytes bytes(wanted.size_bytes());
  for (std::uint64_t first = 0; first < total; first += piece) {
    const auto count = std::min(piece, total - first);
    source.read(tensor, first, count, std::span(bytes).subspan(first * element, count * element), sums);
  }
  return bytes;
}

}  // namespace fsdp::test
