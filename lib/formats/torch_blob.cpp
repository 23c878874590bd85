// Pickled tensors. Source: torch 2.11 torch/_utils.py (_rebuild_*), torch/serialization.py (persistent ids).
#include "lib/formats/torch_blob.hpp"

#include <memory>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/formats/block.hpp"
#include "lib/formats/pickle/pickle_reader.hpp"

namespace fsdp {
namespace {

/// A call that rebuilds a tensor: the function and its arguments.
struct Rebuild {
  const PickleGlobal* function;
  const PickleTuple* args;
};

class TensorParser {
 public:
  TensorParser(const PickleValue& value, const std::string& file) : value_(value), file_(file) {}

  std::optional<TensorView> parse() const {
    const auto rebuild = unwrap();
    if (!rebuild) return std::nullopt;
    const auto& [function, args] = *rebuild;
    const bool typed = function->name == "_rebuild_tensor_v3";
    const std::size_t num_args = typed ? 7 : 6;
    if (args->items.size() < num_args || args->items.size() > num_args + 1)
      fail("has an unexpected number of arguments");
    TensorView view;
    if (args->items.size() > num_args) parse_metadata(*args->items[num_args], view);
    parse_storage(*args->items[0], typed ? args->items[6] : nullptr, view);
    view.storage_offset = static_cast<std::uint64_t>(count(*args->items[1]));
    view.sizes = counts(*args->items[2]);
    view.strides = counts(*args->items[3]);
    check_extent(view);
    return view;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(file_, value_.offset_bytes, "a pickled tensor " + what);
  }

  /// Looks inside nn.Parameter and tensors with python attributes. Returns nothing when the value is no tensor.
  std::optional<Rebuild> unwrap() const {
    const PickleValue* value = &value_;
    for (int layer = 0; layer < 4; ++layer) {
      const auto* object = value->object();
      if (object == nullptr || object->is_new) return std::nullopt;
      const auto* function = object->callable->global();
      const auto* args = object->args->tuple();
      if (function->is("torch._tensor", "_rebuild_from_type_v2")) {
        if (args->items.size() != 4) fail("has unexpected arguments");
        if (!args->items[1]->is_global("torch", "Tensor"))
          fail("is of the class " + class_name(*args->items[1]) + ", which is not supported: only plain tensors are" +
               std::string(class_name(*args->items[1]).starts_with("torch.distributed.")
                               ? ". This is one rank's part of a tensor: give the folder with the files of all ranks"
                               : ""));
        const auto* inner = args->items[0]->global();
        if (inner == nullptr || args->items[2]->tuple() == nullptr) fail("has unexpected arguments");
        return checked({inner, args->items[2]->tuple()});
      }
      if (!function->is("torch._utils", "_rebuild_parameter") &&
          !function->is("torch._utils", "_rebuild_parameter_with_state")) {
        return function->module == "torch._utils" ? std::optional(checked({function, args})) : std::nullopt;
      }
      if (args->items.empty()) fail("has no data");
      value = args->items[0];
    }
    fail("is wrapped too often");
  }

  static std::string class_name(const PickleValue& value) {
    const auto* type = value.global();
    return type == nullptr ? describe(value) : std::string(type->module) + "." + std::string(type->name);
  }

  Rebuild checked(Rebuild rebuild) const {
    if (!rebuild.function->is("torch._utils", "_rebuild_tensor_v2") &&
        !rebuild.function->is("torch._utils", "_rebuild_tensor_v3")) {
      fail("is rebuilt by " + std::string(rebuild.function->module) + "." + std::string(rebuild.function->name) +
           ", which is not supported: only dense tensors are");
    }
    return rebuild;
  }

  void parse_metadata(const PickleValue& metadata, TensorView& view) const {
    if (metadata.is_none()) return;
    if (metadata.dict() == nullptr) fail("has unexpected metadata");
    for (const auto& [key, item] : metadata.dict()->items) {
      const auto* name = key->string();
      const auto* set = item->boolean();
      if (set != nullptr && !*set) continue;
      if (name == nullptr || set == nullptr || (name->text != "conj" && name->text != "neg")) {
        fail("carries metadata \"" + std::string(name != nullptr ? name->text.substr(0, 100) : "?") +
             "\" that is not supported");
      }
      (name->text == "conj" ? view.conjugated : view.negated) = true;
    }
  }

  void parse_storage(const PickleValue& value, PickleRef dtype, TensorView& view) const {
    if (value.persistent() == nullptr) fail("has no storage");
    auto storage = storage_reference(value, file_);
    if (dtype == nullptr && !storage.dtype) fail("has no element type");
    view.dtype = dtype != nullptr ? dtype_of(*dtype) : *storage.dtype;
    view.storage_key = std::move(storage.key);
    view.storage_bytes = storage.length_bytes;
  }
  DType dtype_of(const PickleValue& value) const {
    const auto* global = value.global();
    if (global == nullptr || global->module != "torch") fail("has no element type");
    try {
      return dtype_from_torch(global->name);
    } catch (const FormatError& error) {
      fail(std::string("has an ") + error.what());
    }
  }
  std::int64_t count(const PickleValue& value) const {
    const auto* integer = value.integer();
    if (integer == nullptr || *integer < 0) fail("has an offset, size or stride that is not a count");
    return *integer;
  }
  Shape counts(const PickleValue& value) const {
    const auto* tuple = value.tuple();
    if (tuple == nullptr || tuple->items.size() > kMaxDims) fail("has no proper shape");
    Shape shape;
    for (const auto item : tuple->items) shape.push_back(count(*item));
    return shape;
  }

  std::int64_t count_elements(const Shape& sizes) const {
    try {
      return num_elements(sizes);
    } catch (const FormatError& error) {
      fail("has an impossible shape: " + std::string(error.what()));
    }
  }
  void check_extent(const TensorView& view) const {
    if (view.sizes.size() != view.strides.size()) fail("has more sizes than strides, or fewer");
    if (count_elements(view.sizes) == 0) return;
    std::uint64_t last = view.storage_offset;
    bool overflows = false;
    for (std::size_t dim = 0; dim < view.sizes.size(); ++dim) {
      std::uint64_t reach = 0;
      overflows |= __builtin_mul_overflow(static_cast<std::uint64_t>(view.sizes[dim] - 1),
                                          static_cast<std::uint64_t>(view.strides[dim]), &reach);
      overflows |= __builtin_add_overflow(last, reach, &last);
    }
    if (overflows || last >= view.storage_bytes / dtype_size_bytes(view.dtype)) fail("reaches past its storage");
  }

  const PickleValue& value_;
  const std::string& file_;
};

}  // namespace

StorageReference storage_reference(const PickleValue& value, const std::string& file) {
  const auto fail = [&](const std::string& what) {
    throw FormatError(file, value.offset_bytes, "a pickled storage " + what);
  };
  const auto* id = value.persistent() != nullptr ? value.persistent()->id->tuple() : nullptr;
  if (id == nullptr || id->items.size() < 5 || id->items.size() > 6) fail("was expected, found " + describe(value));
  const auto* tag = id->items[0]->string();
  const auto* kind = id->items[1]->global();
  const auto* key = id->items[2]->string();
  const auto* count = id->items[4]->integer();
  if (tag == nullptr || tag->text != "storage" || kind == nullptr || key == nullptr) fail("has no name");
  if (count == nullptr || *count < 0) fail("has no size");
  if (id->items.size() == 6 && !id->items[5]->is_none())
    fail("is a view of another one, as only PyTorch before 0.4 wrote");
  StorageReference found{std::string(key->text), std::nullopt, static_cast<std::uint64_t>(*count)};
  if (kind->is("torch.storage", "UntypedStorage")) return found;
  if (kind->module == "torch") found.dtype = dtype_from_storage_class(kind->name);
  if (!found.dtype) {
    fail("is of the unsupported class " + std::string(kind->module) + "." + std::string(kind->name));
  }
  if (__builtin_mul_overflow(found.length_bytes, dtype_size_bytes(*found.dtype), &found.length_bytes)) {
    fail("has an impossible size");
  }
  return found;
}

bool TensorView::is_contiguous() const {
  std::int64_t expected = 1;
  if (num_elements(sizes) == 0) return true;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    if (sizes[dim] != 1 && strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

std::uint64_t TensorView::length_bytes() const {
  std::uint64_t length = 0;
  if (__builtin_mul_overflow(element_count(sizes), dtype_size_bytes(dtype), &length)) {
    throw FormatError("a tensor has more bytes than 64 bits can count");
  }
  return length;
}

std::optional<TensorView> tensor_view(const PickleValue& value, const std::string& file) {
  return TensorParser(value, file).parse();
}

TorchBlob::TorchBlob(const File& file, std::uint64_t begin_bytes, std::uint64_t length_bytes)
    : TorchBlob(std::make_shared<FileAccess>(file), begin_bytes, length_bytes) {}

TorchBlob::TorchBlob(std::shared_ptr<const RandomAccess> input, std::uint64_t begin_bytes, std::uint64_t length_bytes)
    : input_(std::move(input)), begin_bytes_(begin_bytes), zip_(input_, begin_bytes, length_bytes) {
  const ZipEntry& pickle = zip_.find_suffix("/data.pkl");
  prefix_ = pickle.name.substr(0, pickle.name.size() - std::string_view("data.pkl").size());
  if (const auto* order = zip_.find(prefix_ + "byteorder")) {
    if (zip_.read_text(*order, 16) != "little") {
      throw FormatError(input_->name(), order->header_bytes,
                        "was written on a big-endian machine, which is not supported");
    }
  }
  document_ = read_pickle({.text = std::make_shared<const std::string>(zip_.read_text(pickle)),
                           .file = input_->name(),
                           .file_offset_bytes = zip_.data_offset(pickle)});
}

const ZipEntry& TorchBlob::storage(const TensorView& view) const {
  const ZipEntry* storage = zip_.find(prefix_ + "data/" + view.storage_key);
  if (storage == nullptr || storage->size_bytes != view.storage_bytes) {
    throw FormatError(input_->name(), storage != nullptr ? storage->header_bytes : begin_bytes_,
                      "the tensor needs entry \"data/" + view.storage_key.substr(0, 100) + "\" of " +
                          std::to_string(view.storage_bytes) + " bytes, but it is " +
                          (storage != nullptr ? std::to_string(storage->size_bytes) + " bytes" : "absent"));
  }
  return *storage;
}

}  // namespace fsdp
