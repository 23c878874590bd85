#include "lib/checkpoints/programs/megatron/megatron_folder.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/dcp/dcp_source.hpp"
#include "lib/checkpoints/source/plain_value.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kMaxTrackerBytes = 4096;
constexpr std::uint64_t kMaxCommonBytes = 1ull << 30;
constexpr std::string_view kCommonItem = "common_state/shard_";

template <typename T>
double number_of(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return static_cast<double>(value);
}

std::shared_ptr<TorchBlob> open_common_file(const std::filesystem::path& file) {
  auto bytes = read_text_file(file, kMaxCommonBytes);
  const auto length = bytes.size();
  return std::make_shared<TorchBlob>(std::make_shared<MemoryAccess>(file.string(), std::move(bytes)), 0, length);
}

}  // namespace

std::filesystem::path megatron_iteration(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(directory / kMegatronTracker, error)) return {};
  auto text = read_text_file(directory / kMegatronTracker, kMaxTrackerBytes);
  std::erase_if(text, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
  constexpr std::size_t digits = 7, most = 18;
  const bool is_number =
      !text.empty() && text.size() <= most && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number && text != "release") return {};
  if (is_number) text = "iter_" + std::string(digits - std::min(digits, text.size()), '0') + text;
  return is_dcp_directory(directory / text) ? directory / text : std::filesystem::path();
}

bool is_megatron_folder(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::exists(directory / kMegatronTracker, error);
}

std::unique_ptr<Source> open_megatron(const std::filesystem::path& directory) {
  const auto iteration = megatron_iteration(directory);
  if (iteration.empty())
    throw FormatError((directory / kMegatronTracker).string() +
                      ": names no folder beside it that has .metadata: of Megatron-core's formats torch_dist is read");
  return open_dcp(iteration);
}

MegatronCommon::MegatronCommon(std::shared_ptr<TorchBlob> blob, std::string file)
    : blob_(std::move(blob)), root_{blob_->document().root, std::move(file), ""} {
  const auto* list = root_.value->list();  // core 0.19 keeps a list of one
  if (list != nullptr && list->items.size() == 1) root_.value = list->items[0];
  if (pickled_mapping(*root_.value) == nullptr) root_.fail("should be a dict and is " + describe(*root_.value));
}

std::optional<MegatronCommon> MegatronCommon::of(const Source& dcp) {
  for (std::size_t i = 0; i < dcp.values().size(); ++i) {
    const auto& name = dcp.values()[i].name;
    if (name.starts_with(kCommonItem))
      return MegatronCommon(open_dcp_value(dcp, i), (dcp.info().directory / name).string());
  }
  const auto file = dcp.info().directory / kMegatronCommon;
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return std::nullopt;
  return MegatronCommon(open_common_file(file), file.string());
}

std::optional<PickleNode> MegatronCommon::arguments() const {
  auto args = root_.find("args");
  if (!args) return std::nullopt;
  if (const auto* object = args->value->object_of("argparse", "Namespace")) args->value = object->state;
  if (args->value == nullptr || pickled_mapping(*args->value) == nullptr) return std::nullopt;
  return args;
}

std::optional<double> MegatronCommon::number(const PickleNode& node) const {
  if (const auto* integer = node.value->integer()) return static_cast<double>(*integer);
  if (const auto* real = node.value->real()) return *real;
  const auto view = is_tensor_like(*node.value) ? tensor_view(*node.value, node.file) : std::nullopt;
  if (!view || num_elements(view->sizes) != 1) return std::nullopt;
  constexpr std::uint64_t kMostBytes = 1u << 20;
  const auto storage = blob_->zip().read_text(blob_->storage(*view), kMostBytes);
  const auto item = dtype_size_bytes(view->dtype);
  const auto element = std::string_view(storage).substr(view->storage_offset * item, item);  // tensor_view() checked it
  switch (view->dtype) {
    case DType::f32:
      return number_of<float>(element);
    case DType::f64:
      return number_of<double>(element);
    case DType::i64:
      return number_of<std::int64_t>(element);
    case DType::i32:
      return number_of<std::int32_t>(element);
    default:
      return std::nullopt;
  }
}

}  // namespace fsdp
