#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/files/formats/block.hpp"
#include "lib/files/formats/byte_sink.hpp"
#include "lib/files/formats/dcp.hpp"
#include "lib/files/formats/torch_blob.hpp"
#include "lib/files/formats/zip_format.hpp"

namespace fsdp {
namespace {

using detail::append_le;

void append_string(std::string& out, std::string_view text) {
  append_le(out, std::uint64_t{text.size()});
  out += text;
}

void append_shape(std::string& out, const Shape& shape) {
  append_le(out, std::uint64_t{shape.size()});
  for (const auto size : shape) append_le(out, size);
}

/// Takes what append_* put; a FormatError where the bytes end too early.
class ItemParser {
 public:
  explicit ItemParser(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }
  template <typename Integer>
  Integer number() {
    return detail::read_le<Integer>(take(sizeof(Integer)), 0);
  }
  std::string string() { return std::string(take(number<std::uint64_t>())); }
  Shape shape() {
    Shape shape(length(sizeof(std::int64_t)));
    for (auto& size : shape) size = number<std::int64_t>();
    return shape;
  }
  /// A count of things of at least `unit_bytes` each, bounded by what is left.
  std::uint64_t length(std::size_t unit_bytes) {
    const auto count = number<std::uint64_t>();
    if (count > rest_.size() / unit_bytes) throw FormatError("a list of DCP items is cut off");
    return count;
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) throw FormatError("a list of DCP items is cut off");
    const auto taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::string_view rest_;
};

DcpItem parse_item(ItemParser& parser) {
  DcpItem item;
  item.key = parser.string();
  const auto path_length = parser.length(1);
  for (std::uint64_t i = 0; i < path_length; ++i) {
    if (parser.number<std::uint8_t>() != 0) {
      item.path.emplace_back(parser.number<std::int64_t>());
    } else {
      item.path.emplace_back(parser.string());
    }
  }
  item.is_tensor = parser.number<std::uint8_t>() != 0;
  item.dtype = dtype_from_torch(parser.string());
  item.global_shape = parser.shape();
  item.offsets = parser.shape();
  item.sizes = parser.shape();
  item.file = parser.string();
  item.offset_bytes = parser.number<std::uint64_t>();
  item.length_bytes = parser.number<std::uint64_t>();
  return item;
}

}  // namespace

struct DcpShardWriter::Impl {
  Impl(const std::filesystem::path& directory, std::string file_name)
      : file(std::move(file_name)), sink(directory / file) {}

  DcpItem& add(std::string key, StatePath path, std::uint64_t offset_bytes) {
    if (finished) throw std::logic_error("DcpShardWriter: add after finish");
    auto& item = items.emplace_back();
    item.key = std::move(key);
    item.path = std::move(path);
    item.file = file;
    item.offset_bytes = offset_bytes;
    item.length_bytes = sink.position() - offset_bytes;
    return item;
  }

  std::string file;
  ByteSink sink;
  std::vector<DcpItem> items;
  bool finished = false;
};

DcpShardWriter::DcpShardWriter(const std::filesystem::path& directory, int rank)
    : impl_(std::make_unique<Impl>(directory, "__" + std::to_string(rank) + "_0.distcp")) {}
DcpShardWriter::~DcpShardWriter() = default;

void DcpShardWriter::add_value(const std::string& key, StatePath path, const nlohmann::json& value) {
  const auto begin = impl_->sink.position();
  write_value_blob(impl_->sink, value);
  impl_->add(key, std::move(path), begin);
}

void DcpShardWriter::add_tensor(const ShardRecord& record, StatePath path) {
  if (!block_is_inside({record.offsets, record.sizes}, record.global_shape) ||
      static_cast<std::uint64_t>(num_elements(record.sizes)) * dtype_size_bytes(record.dtype) != record.data.size()) {
    throw UsageError("tensor \"" + record.name + "\": the block to save does not fit its tensor or its data");
  }
  const auto begin = impl_->sink.position();
  write_tensor_blob(impl_->sink, record.dtype, record.sizes, record.data);
  auto& item = impl_->add(record.name, std::move(path), begin);
  item.is_tensor = true;
  item.dtype = record.dtype;
  item.global_shape = record.global_shape;
  item.offsets = record.offsets;
  item.sizes = record.sizes;
}

std::vector<DcpItem> DcpShardWriter::finish() {
  if (std::exchange(impl_->finished, true)) throw std::logic_error("DcpShardWriter: finished twice");
  impl_->sink.finish();
  return std::move(impl_->items);
}

std::uint64_t DcpShardWriter::bytes_written() const { return impl_->sink.position(); }
std::uint32_t DcpShardWriter::file_crc32() const { return impl_->sink.crc32(); }

std::string serialize_dcp_items(std::span<const DcpItem> items) {
  std::string out;
  for (const auto& item : items) {
    append_string(out, item.key);
    append_le(out, std::uint64_t{item.path.size()});
    for (const auto& part : item.path) {
      append_le(out, static_cast<std::uint8_t>(part.index()));
      if (const auto* position = std::get_if<std::int64_t>(&part)) {
        append_le(out, *position);
      } else {
        append_string(out, std::get<std::string>(part));
      }
    }
    append_le(out, static_cast<std::uint8_t>(item.is_tensor));
    append_string(out, torch_name(item.dtype));
    append_shape(out, item.global_shape);
    append_shape(out, item.offsets);
    append_shape(out, item.sizes);
    append_string(out, item.file);
    append_le(out, item.offset_bytes);
    append_le(out, item.length_bytes);
  }
  return out;
}

std::vector<DcpItem> deserialize_dcp_items(std::string_view bytes) {
  std::vector<DcpItem> items;
  for (ItemParser parser(bytes); !parser.at_end();) items.push_back(parse_item(parser));
  return items;
}

}  // namespace fsdp
