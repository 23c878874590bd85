#include "lib/checkpoints/programs/dcp/dcp_target.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_json.hpp"
#include "lib/formats/crc32.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/torch_blob_writer.hpp"

namespace fsdp {
namespace {

std::uint32_t crc_of(std::string_view bytes) { return crc32(0, std::as_bytes(std::span(bytes.data(), bytes.size()))); }

/// The rows [first, end) of dim 0 that go to `shard`. Scalars and tensors without elements go to shard 0 as one piece.
std::pair<std::int64_t, std::int64_t> rows_of(const Shape& shape, int shard, int num_shards) {
  if (shape.empty() || num_elements(shape) == 0) return {0, shard != 0 ? 0 : shape.empty() ? 1 : shape[0]};
  const auto rows = shape[0], each = (rows - 1) / num_shards + 1;
  // Beyond the last row the product could overflow.
  const auto first = shard > rows / each ? rows : std::min(rows, each * shard);
  return {first, std::min(rows, first + each)};
}

}  // namespace

DcpTarget::DcpTarget(DcpTargetOptions options) : options_(std::move(options)) {
  if (options_.num_shards < 1 || options_.num_shards > 65536) {
    throw RequestError("shards " + std::to_string(options_.num_shards) + ": 1 to 65536 ranks are possible");
  }
}

Layout DcpTarget::plan(const Source& source) {
  Layout layout;
  items_.clear();
  item_of_segment_.clear();
  known_.clear();
  for (const auto& group : detail::group_values(source)) add_value(layout, source, group);
  for (int shard = 0; shard < options_.num_shards; ++shard) {
    for (std::size_t i = 0; i < source.tensors().size(); ++i) add_tensor(layout, source, i, shard);
  }
  auto metadata = dcp_metadata_bytes(source.info().directory, items_);
  layout.files.push_back({".metadata", metadata.size()});
  layout.literals.push_back({.file = layout.files.size() - 1, .bytes = std::move(metadata)});
  for (const auto& literal : layout.literals) {
    known_.push_back({.file = literal.file,
                      .offset_bytes = literal.offset_bytes,
                      .size_bytes = literal.bytes.size(),
                      .crc32 = crc_of(literal.bytes)});
  }
  files_ = layout.files;
  segments_ = layout.segments;
  for (const auto& name : options_.extra_names) layout.files.push_back({name, 0});
  return layout;
}

std::size_t DcpTarget::append(Layout& layout, int shard, DcpItem& item, std::uint64_t size_bytes) {
  item.file = dcp_file_name(static_cast<std::size_t>(shard));
  if (layout.files.empty() || layout.files.back().name != item.file) layout.files.push_back({item.file, 0});
  item.offset_bytes = layout.files.back().size_bytes;
  item.length_bytes = size_bytes;
  layout.files.back().size_bytes += size_bytes;
  return layout.files.size() - 1;
}

void DcpTarget::add_value(Layout& layout, const Source& source, const detail::ValueGroup& group) {
  DcpItem item;
  item.key = group.name;
  item.path = group.path;
  PickleWriter pickle;
  detail::emit_group(pickle, source, group);
  const auto blob = plan_value_blob(pickle.finish());
  const auto file = append(layout, 0, item, blob.size_bytes());
  layout.literals.push_back({file, item.offset_bytes, blob.head()});
  items_.push_back(std::move(item));
}

void DcpTarget::add_tensor(Layout& layout, const Source& source, std::size_t number, int shard) {
  const auto& tensor = source.tensors()[number];
  const auto [first, end] = rows_of(tensor.shape, shard, options_.num_shards);
  const bool is_empty = num_elements(tensor.shape) == 0;
  if (is_empty ? shard != 0 : first == end) return;
  if (!options_.keep_pieces || is_empty || tensor.shape.empty())
    return add_rows(layout, source, number, shard, first, end);
  const auto step = (tensor.shape[0] - 1) / std::max<std::int64_t>(tensor.num_shards, 1) + 1;
  for (auto row = first; row < end; row = std::min(end, row + step))
    add_rows(layout, source, number, shard, row, std::min(end, row + step));
}

void DcpTarget::add_rows(Layout& layout, const Source& source, std::size_t number, int shard, std::int64_t first,
                         std::int64_t end) {
  const auto& tensor = source.tensors()[number];
  const bool is_empty = num_elements(tensor.shape) == 0;
  DcpItem item;
  item.key = tensor.name;
  item.path = tensor.path;
  item.is_tensor = true;
  item.dtype = tensor.dtype;
  item.global_shape = item.sizes = tensor.shape;
  item.offsets.assign(tensor.shape.size(), 0);
  std::int64_t elements_before = 0;
  if (!tensor.shape.empty() && !is_empty) {
    elements_before = num_elements(tensor.shape) / tensor.shape[0] * first;
    item.offsets[0] = first;
    item.sizes[0] = end - first;
  }
  const auto blob = plan_tensor_blob(item.dtype, item.sizes);
  const auto file = append(layout, shard, item, blob.size_bytes());
  auto head = blob.head();
  layout.segments.push_back({.file = file,
                             .offset_bytes = item.offset_bytes + head.size(),
                             .tensor = number,
                             .first = static_cast<std::uint64_t>(elements_before),
                             .count = element_count(item.sizes)});
  layout.literals.push_back({file, item.offset_bytes, std::move(head)});
  item_of_segment_.push_back(items_.size());
  items_.push_back(std::move(item));
}

std::vector<LayoutLiteral> DcpTarget::finish(std::span<const std::uint32_t> crcs) {
  if (crcs.size() != segments_.size()) throw std::logic_error("DcpTarget::finish: one checksum for each segment");
  std::vector<LayoutLiteral> literals;
  auto spans = known_;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const auto& item = items_[item_of_segment_[i]];
    const auto& segment = segments_[i];
    for (auto& piece : plan_tensor_blob(item.dtype, item.sizes).tail(crcs.subspan(i, 1))) {
      const auto offset = item.offset_bytes + piece.offset_bytes;
      spans.push_back({.file = segment.file,
                       .offset_bytes = offset,
                       .size_bytes = piece.bytes.size(),
                       .crc32 = crc_of(piece.bytes)});
      literals.push_back({segment.file, offset, std::move(piece.bytes)});
    }
    spans.push_back({.file = segment.file,
                     .offset_bytes = segment.offset_bytes,
                     .size_bytes = segment.count * dtype_size_bytes(item.dtype),
                     .crc32 = crcs[i]});
  }
  if (!options_.extra_files) return literals;
  const auto extra = options_.extra_files(written_files(std::move(spans)));
  if (extra.size() != options_.extra_names.size()) throw std::logic_error("DcpTarget: extra files without names");
  for (std::size_t i = 0; i < extra.size(); ++i) literals.push_back({files_.size() + i, 0, extra[i]});
  return literals;
}

std::vector<WrittenFile> DcpTarget::written_files(std::vector<Span> spans) const {
  std::vector<WrittenFile> files;
  for (const auto& file : files_) files.push_back({file.name.string(), 0, 0});
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return std::pair(a.file, std::pair(a.offset_bytes, a.size_bytes)) <
           std::pair(b.file, std::pair(b.offset_bytes, b.size_bytes));
  });
  for (const auto& span : spans) {
    auto& file = files[span.file];
    if (span.offset_bytes != file.size_bytes) throw std::logic_error("DcpTarget: the spans of a file leave a hole");
    file.crc32 = crc32_combine(file.crc32, span.crc32, span.size_bytes);
    file.size_bytes += span.size_bytes;
  }
  return files;
}

std::string run_json_text(nlohmann::json run, std::span<const WrittenFile> files) {
  auto& list = run["files"] = nlohmann::json::object();
  for (const auto& written : files) list[written.name] = {{"size_bytes", written.size_bytes}, {"crc32", written.crc32}};
  return run_json_text(std::move(run));
}

void carry_run_json(DcpTargetOptions& options, const std::filesystem::path& directory) {
  const auto path = directory / "run.json";
  if (directory.empty() || !std::filesystem::exists(path)) return;
  nlohmann::json run;
  try {
    run = read_run_json(path);
  } catch (const FormatError& error) {
    throw FormatError(error.what() + std::string("; move it away to convert without it"), error.advice());
  }
  run["world_size"] = options.num_shards;
  options.extra_names = {"run.json"};
  options.extra_files = [run = std::move(run)](std::span<const WrittenFile> files) {
    return std::vector<std::string>{run_json_text(run, files)};
  };
}

std::unique_ptr<Target> make_dcp_target(WriteRequest& request) {
  DcpTargetOptions dcp;
  dcp.num_shards = std::max(request.options.num_shards, 1);
  // run.json describes the tensors of the run: it is carried along only with all of these, unchanged.
  if (!request.changes.changes_tensors()) carry_run_json(dcp, request.original.info().directory);
  return std::make_unique<DcpTarget>(std::move(dcp));
}

}  // namespace fsdp
