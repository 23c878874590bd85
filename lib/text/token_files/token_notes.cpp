#include "lib/text/token_files/token_notes.hpp"

#include "lib/text/token_files/hdf5.hpp"
#include "lib/text/token_files/hdf5_datasets.hpp"

namespace fsdp {
namespace {

using Hdf5Attribute = UniqueHid<H5Aclose>;

/// A scalar attribute of the root group; not open when there is none.
Hdf5Attribute open_scalar(const Hdf5File& handle, const char* name) {
  if (H5Aexists(handle.get(), name) <= 0) return {};
  Hdf5Attribute attribute(H5Aopen(handle.get(), name, H5P_DEFAULT));
  if (attribute.get() < 0) return {};
  const Hdf5Space space(H5Aget_space(attribute.get()));
  if (space.get() < 0 || H5Sget_simple_extent_npoints(space.get()) != 1) return {};
  return attribute;
}

std::string text_attribute(const Hdf5File& handle, const char* name) {
  const auto attribute = open_scalar(handle, name);
  if (attribute.get() < 0) return {};
  const Hdf5Type stored(H5Aget_type(attribute.get()));
  // As our writers and h5py store text. HDF5 bounds it by the file: attributes are in its metadata.
  if (stored.get() < 0 || H5Tget_class(stored.get()) != H5T_STRING || H5Tis_variable_str(stored.get()) <= 0) return {};
  char* text = nullptr;
  if (H5Aread(attribute.get(), stored.get(), static_cast<void*>(&text)) < 0 || text == nullptr) return {};
  std::string copy = text;
  H5free_memory(text);
  return copy;
}

std::int64_t integer_attribute(const Hdf5File& handle, const char* name) {
  const auto attribute = open_scalar(handle, name);
  if (attribute.get() < 0) return 0;
  const Hdf5Type stored(H5Aget_type(attribute.get()));
  std::int64_t value = 0;
  if (stored.get() < 0 || H5Tget_class(stored.get()) != H5T_INTEGER) return 0;
  return H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0 ? 0 : value;
}

}  // namespace

TokenFileNotes read_token_notes(const std::filesystem::path& file) {
  const Hdf5Scope scope;
  const auto handle = open_hdf5_read(file);
  TokenFileNotes notes;
  notes.tokenizer = text_attribute(handle, "tokenizer");
  notes.tokenizer_description = text_attribute(handle, "tokenizer_description");
  notes.vocab_size = integer_attribute(handle, "vocab_size");
  notes.chat_template = text_attribute(handle, "chat_template");
  notes.train_on = text_attribute(handle, "train_on");
  return notes;
}

std::vector<std::string> unread_datasets(const std::filesystem::path& file) {
  const Hdf5Scope scope;
  const auto handle = open_hdf5_read(file);
  std::vector<std::string> found;
  if (detail::has_dataset(handle, "loss_mask")) return found;
  for (const auto* name : {"labels", "attention_mask", "completion_mask", "assistant_masks", "position_ids"}) {
    if (detail::has_dataset(handle, name)) found.emplace_back(name);
  }
  return found;
}

}  // namespace fsdp
