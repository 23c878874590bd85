#pragma once
// A checkpoint in memory, and its conversion.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/copy.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/ranks/process_group.hpp"
#include "tests/unit/checkpoints/programs/source_test_support.hpp"

namespace fsdp::test {

class MemorySource final : public Source {
 public:
  /// Adds a tensor with random elements. The path is {name} unless given.
  MemorySource& add(const std::string& name, DType dtype, Shape shape, StatePath path = {}) {
    if (path.empty()) path = {name};
    data_.push_back(random_bytes(tensor_bytes(dtype, shape), static_cast<unsigned>(data_.size() + 1)));
    tensors_.push_back({name, std::move(path), dtype, std::move(shape), 1, data_.back().size()});
    return *this;
  }
  /// Adds a tensor that can be planned and not read.
  MemorySource& add_unread(const std::string& name, DType dtype, Shape shape) {
    data_.emplace_back();
    tensors_.push_back({name, {name}, dtype, std::move(shape), 1, 0});
    return *this;
  }
  MemorySource& add_value(const std::string& name, StatePath path, const std::function<void(PickleWriter&)>& write) {
    PickleWriter pickle;
    write(pickle);
    auto document = std::make_shared<PickleDocument>(
        read_pickle({std::make_shared<const std::string>(pickle.finish()), 0, "memory", 0}));
    values_.push_back({name, std::move(path)});
    documents_.push_back(std::move(document));
    return *this;
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    if (fail_on.contains(tensors_[tensor].name)) throw FormatError("memory", 17, "is damaged");
    const auto element = dtype_size_bytes(tensors_[tensor].dtype);
    if (whole.contains(tensors_[tensor].name)) CHECK(out.size() == data_[tensor].size());
    REQUIRE(out.size() == count * element);
    if (!out.empty()) std::memcpy(out.data(), data_[tensor].data() + first * element, out.size());
    if (sums != nullptr) sums->push_back({static_cast<std::uint32_t>(tensor), first, first + count, 0});
    return std::nullopt;
  }
  bool prefers_whole(std::size_t tensor) const override { return whole.contains(tensors_[tensor].name); }
  LoadedValue value(std::size_t number) const override { return {documents_[number], documents_[number]->root}; }
  std::vector<ReadSum> verify_sums(std::vector<ReadSum> sums) const override {
    std::map<std::uint32_t, std::uint64_t> elements;
    for (const auto& sum : sums) elements[sum.storage] += sum.end - sum.begin;
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      CHECK(elements[i] == static_cast<std::uint64_t>(num_elements(tensors_[i].shape)));
    }
    if (sums_are_wrong) throw FormatError("memory", 18, "a checksum is wrong");
    return {};
  }

  const Bytes& data(std::size_t tensor) const { return data_[tensor]; }
  SourceInfo& info() { return info_; }
  using Source::info;

  std::set<std::string> fail_on, whole;
  bool sums_are_wrong = false;

 private:
  std::vector<Bytes> data_;
  std::vector<std::shared_ptr<const PickleDocument>> documents_;
};

inline CopyReport copy_alone(const Source& source, Target& target, const std::filesystem::path& output,
                             const CopyOptions& options = {}) {
  const auto group = make_single_group();
  return copy(source, target, output, options, *group);
}

/// Names in a directory, including hidden ones.
inline std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

inline void check_same_tensors(const Source& a, const Source& b) {
  CHECK(a.tensors().size() == b.tensors().size());
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    const auto& tensor = a.tensors()[i];
    CAPTURE(tensor.name);
    const auto other = number_of(b, tensor.name);
    CHECK(b.tensors()[other].dtype == tensor.dtype);
    CHECK(b.tensors()[other].shape == tensor.shape);
    CHECK(read_whole(b, other) == read_whole(a, i));
  }
}

}  // namespace fsdp::test
