#pragma once
// Shared by the tests that feed open_source() with damaged and hostile files.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/types/dtype.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

namespace fsdp::test {

/// Largest block that this program requested from operator new since the last reset (hostile_allocation_test.cpp
/// replaces the operator).
void reset_largest_allocation();
std::size_t largest_allocation();

/// Content of a checkpoint: bytes by name, with dtype and shape.
struct ReadTensor {
  DType dtype = DType::f32;
  Shape shape;
  Bytes bytes;
  bool operator==(const ReadTensor&) const = default;
};

struct Outcome {
  bool refused = false;
  std::string message;
  std::map<std::string, ReadTensor> tensors;
};

/// Larger tensors are read at their beginning only: a view with stride 0 may have any size.
constexpr std::uint64_t whole_tensor_bytes = 1u << 20;

/// Opens the file or directory at `path`, reads all tensors and values and compares the checksums. FormatError and
/// IoError are refusals; any other exception passes through and fails the test.
inline Outcome read_everything(const std::filesystem::path& path) {
  Outcome outcome;
  try {
    const auto source = open_source(path);
    std::vector<ReadSum> sums;
    for (std::size_t i = 0; i < source->tensors().size(); ++i) {
      const auto& tensor = source->tensors()[i];
      const bool whole = tensor.size_bytes() <= whole_tensor_bytes;
      const auto count = whole ? static_cast<std::uint64_t>(num_elements(tensor.shape)) : 16;
      Bytes bytes(count * dtype_size_bytes(tensor.dtype));
      source->read(i, 0, count, bytes, &sums);
      if (whole) outcome.tensors[tensor.name] = {tensor.dtype, tensor.shape, std::move(bytes)};
    }
    for (std::size_t i = 0; i < source->values().size(); ++i) {
      if (source->value(i).value == nullptr) throw std::logic_error("a value without content");
    }
    source->verify_sums(std::move(sums));
  } catch (const FormatError& error) {
    outcome.refused = true;
    outcome.message = error.what();
  } catch (const IoError& error) {
    outcome.refused = true;
    outcome.message = error.what();
  }
  return outcome;
}

/// Writes a pickle opcode by opcode.
class PickleText {
 public:
  explicit PickleText(int protocol = 2) : text_{'\x80', static_cast<char>(protocol)} {}
  PickleText& raw(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  PickleText& op(char code) { return raw({&code, 1}); }
  PickleText& repeat(std::string_view bytes, int times) {
    for (int i = 0; i < times; ++i) raw(bytes);
    return *this;
  }
  PickleText& global(std::string_view module, std::string_view name) {
    return op('c').raw(module).op('\n').raw(name).op('\n');
  }
  PickleText& string(std::string_view text) { return op('X').number<4>(text.size()).raw(text); }
  PickleText& integer(std::uint64_t value) { return raw("\x8a\x08").number<8>(value); }
  template <int Bytes>
  PickleText& number(std::uint64_t value) {
    for (int i = 0; i < Bytes; ++i) op(static_cast<char>(value >> 8 * i & 0xff));
    return *this;
  }
  std::string done() const { return text_ + '.'; }

 private:
  std::string text_;
};

/// A legacy file of torch.save around the pickle of an object, with the storages that the pickle names.
inline std::string legacy_file(std::string_view object, std::string_view keys = std::string_view("\x80\x02].", 4),
                               std::string_view storages = {}) {
  std::string file = PickleText().raw({"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12}).done();
  file += PickleText().raw("M\xe9\x03").done();
  file += PickleText()
              .op('}')
              .op('(')
              .string("protocol_version")
              .raw("M\xe9\x03")
              .string("little_endian")
              .op('\x88')
              .string("type_sizes")
              .op('}')
              .op('u')
              .done();
  return file.append(object).append(keys).append(storages);
}

/// An entry of a zip archive as headers and directory describe it; every number can be false.
struct ZipSpec {
  std::string name, data;
  std::uint32_t crc32 = 0;                 // 0: not recorded
  std::uint64_t directory_size = ~0ull;    // ~0: the true size
  std::uint64_t directory_offset = ~0ull;  // offset of the local header; ~0: the true offset
  std::uint16_t method = 0, flags = 0x0808;
};

inline std::string zip_file(std::span<const ZipSpec> entries) {
  std::string file, directory;
  const auto append = [](std::string& out, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i, value >>= 8) out.push_back(static_cast<char>(value & 0xff));
  };
  for (const auto& entry : entries) {
    const std::uint64_t header = entry.directory_offset == ~0ull ? file.size() : entry.directory_offset;
    const std::uint64_t size = entry.directory_size == ~0ull ? entry.data.size() : entry.directory_size;
    append(file, 0x04034b50, 4), append(file, 0, 2), append(file, entry.flags, 2), append(file, entry.method, 2);
    append(file, 0, 16), append(file, entry.name.size(), 2), append(file, 0, 2);
    file += entry.name + entry.data;
    append(directory, 0x02014b50, 4), append(directory, 0, 4), append(directory, entry.flags, 2);
    append(directory, entry.method, 2), append(directory, 0, 4), append(directory, entry.crc32, 4);
    append(directory, size, 4), append(directory, size, 4), append(directory, entry.name.size(), 2);
    append(directory, 0, 12), append(directory, header, 4);
    directory += entry.name;
  }
  const std::uint64_t begin = file.size();
  file += directory;
  append(file, 0x06054b50, 4), append(file, 0, 4), append(file, entries.size(), 2), append(file, entries.size(), 2);
  append(file, directory.size(), 4), append(file, begin, 4), append(file, 0, 2);
  return file;
}

/// A .pt with this object and these storages, which are numbered from 0.
inline std::string torch_file(std::string_view object, std::span<const std::string> storages = {}) {
  std::vector<ZipSpec> entries{{"x/data.pkl", std::string(object)}};
  for (std::size_t i = 0; i < storages.size(); ++i) entries.push_back({"x/data/" + std::to_string(i), storages[i]});
  entries.push_back({"x/version", "3\n"});
  return zip_file(entries);
}

/// Pushes the call that rebuilds a float32 tensor of storage "0" with `numel` elements.
inline void push_tensor(PickleText& out, std::uint64_t numel, std::uint64_t offset,
                        std::span<const std::uint64_t> sizes, std::span<const std::uint64_t> strides,
                        std::string_view key = "0") {
  out.global("torch._utils", "_rebuild_tensor_v2").op('(');
  out.op('(')
      .string("storage")
      .global("torch", "FloatStorage")
      .string(key)
      .string("cpu")
      .integer(numel)
      .op('t')
      .op('Q');
  out.integer(offset).op('(');
  for (const auto size : sizes) out.integer(size);
  out.op('t').op('(');
  for (const auto stride : strides) out.integer(stride);
  out.op('t').op('\x89').global("collections", "OrderedDict").op(')').op('R').op('t').op('R');
}

/// The dict {"w": tensor} of such a tensor.
inline std::string tensor_pickle(std::uint64_t numel, std::uint64_t offset, std::span<const std::uint64_t> sizes,
                                 std::span<const std::uint64_t> strides, std::string_view key = "0") {
  PickleText text;
  text.op('}').string("w");
  push_tensor(text, numel, offset, sizes, strides, key);
  return text.op('s').done();
}

}  // namespace fsdp::test
