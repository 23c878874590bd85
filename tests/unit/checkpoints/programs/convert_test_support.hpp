#pragma once
// Sources in memory, and the comparison of a source with the expected content of a fixture.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "tests/unit/checkpoints/programs/source_test_support.hpp"

namespace fsdp::test {

/// A source of tensors in memory that counts reads.
class MemorySource : public Source {
 public:
  void add(const std::string& name, DType dtype, Shape shape, Bytes bytes, StatePath path = {}) {
    SourceTensor tensor{name, path.empty() ? StatePath{name} : std::move(path), dtype, std::move(shape)};
    tensor.stored_bytes = bytes.size();
    REQUIRE(tensor.size_bytes() == bytes.size());
    tensors_.push_back(std::move(tensor));
    bytes_.push_back(std::move(bytes));
  }
  void add_value(const std::string& name, StatePath path = {}) {
    values_.push_back({name, path.empty() ? StatePath{name} : std::move(path)});
  }
  void set_shards(std::int64_t shards) { tensors_.back().num_shards = shards; }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>*) const override {
    const auto item = dtype_size_bytes(tensors_.at(tensor).dtype);
    REQUIRE((first + count) * item <= bytes_[tensor].size());
    REQUIRE(out.size() == count * item);
    if (count > 0) std::memcpy(out.data(), bytes_[tensor].data() + first * item, out.size());
    ++reads_;
    return std::nullopt;
  }
  LoadedValue value(std::size_t) const override { return {}; }
  int reads() const { return reads_; }

 private:
  std::vector<Bytes> bytes_;
  mutable int reads_ = 0;
};

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline std::vector<std::string> names_of(const Source& source) {
  std::vector<std::string> names;
  for (const auto& tensor : source.tensors()) names.push_back(tensor.name);
  return names;
}

inline std::string joined(const StatePath& path) {
  std::string text;
  for (const auto& part : path) {
    if (!text.empty()) text += '.';
    const auto* name = std::get_if<std::string>(&part);
    text += name != nullptr ? *name : std::to_string(std::get<std::int64_t>(part));
  }
  return text;
}

/// The message of the Error that `action` throws; "" when nothing is thrown.
template <typename Expected, typename Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

/// Checks that the tensors of `source` whose names `concerns` selects are those of `truth`: equal dtype, shape and
/// bytes. Reads them whole and in odd pieces, and verifies checksums.
inline void check_same(
    const Source& source, const Source& truth,
    const std::function<bool(const std::string&)>& concerns = [](const std::string&) { return true; }) {
  std::set<std::string> wanted, found;
  for (const auto& tensor : truth.tensors()) wanted.insert(tensor.name);
  for (const auto& tensor : source.tensors()) {
    if (concerns(tensor.name)) found.insert(tensor.name);
  }
  CHECK(found == wanted);
  std::vector<ReadSum> sums, piece_sums;
  for (std::size_t i = 0; i < truth.tensors().size(); ++i) {
    const auto& tensor = truth.tensors()[i];
    CAPTURE(tensor.name);
    if (!found.contains(tensor.name)) continue;
    const auto number = number_of(source, tensor.name);
    const auto& own = source.tensors()[number];
    CHECK(own.dtype == tensor.dtype);
    CHECK(own.shape == tensor.shape);
    CHECK(joined(own.path) == own.name);
    const auto expected = read_whole(truth, i);
    CHECK((read_whole(source, number, &sums) == expected));
    CHECK((read_pieces(source, number, 37, &piece_sums) == expected));
  }
  source.verify_sums(std::move(sums));
  source.verify_sums(std::move(piece_sums));
}

}  // namespace fsdp::test
