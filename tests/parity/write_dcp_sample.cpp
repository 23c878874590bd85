// Writes a DCP directory as two ranks would, for dcp_torch_test.py, which computes every value again in torch.
// Element i (row-major in the whole tensor) of the tensor with seed s is (7 * i + s) mod 31, as the tensor's type.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/support/cut_block.hpp"

namespace {

using namespace fsdp;

constexpr int num_ranks = 2;

/// Returns small whole numbers in the bit patterns of the narrow float types.
std::uint64_t narrow_float_bits(int value, int exponent_bias, int mantissa_bits) {
  if (value == 0) return 0;
  int exponent = 0;
  while (value >> (exponent + 1) != 0) ++exponent;
  const int mantissa = ((value - (1 << exponent)) << mantissa_bits) >> exponent;
  return static_cast<std::uint64_t>(exponent + exponent_bias) << mantissa_bits | static_cast<std::uint64_t>(mantissa);
}

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

void put_element(DType dtype, int value, std::byte* at) {
  switch (dtype) {
    case DType::f64:
      return put(at, double(value));
    case DType::f32:
      return put(at, float(value));
    case DType::c64:
      put(at, float(value));
      return put(at + 4, -float(value));
    case DType::c128:
      put(at, double(value));
      return put(at + 8, -double(value));
    case DType::f16:
      return put(at, static_cast<std::uint16_t>(narrow_float_bits(value, 15, 10)));
    case DType::bf16:
      return put(at, static_cast<std::uint16_t>(narrow_float_bits(value, 127, 7)));
    case DType::f8_e4m3fn:
      return put(at, static_cast<std::uint8_t>(narrow_float_bits(value, 7, 3)));
    case DType::f8_e5m2:
      return put(at, static_cast<std::uint8_t>(narrow_float_bits(value, 15, 2)));
    case DType::boolean:
      return put(at, static_cast<std::uint8_t>(value % 2));
    default:
      break;
  }
  const std::int64_t wide = value;
  std::memcpy(at, &wide, dtype_size_bytes(dtype));
}

struct Sample {
  std::string key;
  DType dtype;
  Shape shape;
  int seed;
  std::size_t dim = 0;  // split among the ranks
};

std::vector<std::byte> whole_tensor(const Sample& sample) {
  const auto count = num_elements(sample.shape);
  const auto size = dtype_size_bytes(sample.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  for (std::int64_t i = 0; i < count; ++i) {
    const int value = static_cast<int>((7 * i + sample.seed) % 31);
    // The values need five bits of mantissa, more than float8 has: use values that float8 represents exactly.
    const bool tiny = sample.dtype == DType::f8_e4m3fn || sample.dtype == DType::f8_e5m2;
    put_element(sample.dtype, tiny ? value % 8 : value, bytes.data() + static_cast<std::size_t>(i) * size);
  }
  return bytes;
}

/// Splits rows as torch.chunk does; scalars belong to rank 0.
Block part_of(const Sample& sample, int rank) {
  Block block{Shape(sample.shape.size(), 0), sample.shape};
  if (sample.shape.empty()) return block;
  const auto total = sample.shape[sample.dim], each = (total + num_ranks - 1) / num_ranks;
  const auto begin = std::min(total, each * rank), end = std::min(total, each * (rank + 1));
  block.offsets[sample.dim] = begin;
  block.sizes[sample.dim] = end - begin;
  return block;
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  int seed = 0;
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i16,
                           DType::i8, DType::u8, DType::boolean, DType::u16, DType::u32, DType::u64, DType::f8_e4m3fn,
                           DType::f8_e5m2, DType::c64, DType::c128}) {
    all.push_back({"dtypes." + std::string(torch_name(dtype)), dtype, {5, 3}, seed++});
  }
  all.push_back({"shapes.scalar", DType::f32, {}, 3});
  all.push_back({"shapes.step", DType::i64, {}, 20});
  all.push_back({"shapes.one_row", DType::bf16, {1, 7}, 4});  // the second rank has no rows
  all.push_back({"shapes.empty", DType::f32, {0, 5}, 5});
  all.push_back({"shapes.flat", DType::i64, {9}, 6});
  all.push_back({"shapes.columns", DType::f32, {4, 6}, 7, 1});  // split along dim 1
  all.push_back({"shapes.four_dims", DType::bf16, {3, 2, 1, 5}, 8});
  all.push_back({"shapes.large", DType::f32, {1000, 333}, 9});
  return all;
}

StatePath path_of(const std::string& key) {
  const auto dot = key.find('.');
  return {key.substr(0, dot), key.substr(dot + 1)};
}

void write_checkpoint(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  std::vector<DcpItem> items;
  for (int rank = 0; rank < num_ranks; ++rank) {
    DcpShardWriter writer(directory, rank);
    if (rank == 0) {
      writer.add_value("run.step", {"run", "step"}, 20);
      writer.add_value("run.note", {"run", "note"}, "gr\u00fc\u00dfe");
      writer.add_value("run.big", {"run", "big"}, std::uint64_t{1} << 63);
      writer.add_value("optimizer.groups.0.lr", {"optimizer", "groups", 0, "lr"}, 3e-4);
      writer.add_value("optimizer.groups.0.betas", {"optimizer", "groups", 0, "betas"}, {0.9, 0.95});
      writer.add_value("optimizer.groups.1.lr", {"optimizer", "groups", 1, "lr"}, -70000);
      writer.add_value("state", {"state"}, {{"none", nullptr}, {"yes", true}, {"list", {1, 300, -1, 5000000000}}});
    }
    for (const auto& sample : samples()) {
      const auto whole = whole_tensor(sample);
      const Block part = part_of(sample, rank);
      if (sample.shape.empty() && rank != 0) continue;
      const auto block = test::cut_block(whole, sample.shape, part, dtype_size_bytes(sample.dtype));
      writer.add_tensor({sample.key, sample.dtype, sample.shape, part.offsets, part.sizes, block}, path_of(sample.key));
    }
    const auto more = writer.finish();
    items.insert(items.end(), more.begin(), more.end());
  }
  write_dcp_metadata(directory, items);
}

void write_safetensors_file(const std::filesystem::path& path) {
  std::vector<std::vector<std::byte>> data;
  std::vector<ShardRecord> records;
  for (const auto& sample : samples()) {
    if (sample.dtype == DType::c64 || sample.dtype == DType::c128) continue;
    data.push_back(whole_tensor(sample));
    records.push_back(
        {sample.key, sample.dtype, sample.shape, Shape(sample.shape.size(), 0), sample.shape, data.back()});
  }
  write_safetensors(path, records, {{"format", "pt"}});
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 2;
  }
  const std::filesystem::path directory(argv[1]);
  write_checkpoint(directory / "dcp");
  write_safetensors_file(directory / "model.safetensors");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
