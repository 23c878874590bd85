#pragma once
// Tensors inside the pickle of a torch.save archive, and the archives of DCP data files laid out before their data.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/dtype.hpp"
#include "lib/files/formats/byte_sink.hpp"
#include "lib/files/formats/pickle_writer.hpp"
#include "lib/files/formats/shard_record.hpp"
#include "lib/files/formats/zip.hpp"

namespace fsdp {

/// A contiguous tensor that is all of the storage whose bytes are the entry "data/<storage_key>".
void pickle_tensor(PickleWriter& pickle, DType dtype, const Shape& sizes, std::string_view storage_key);

/// Writes a contiguous tensor of shape `sizes`; `data` has exactly its bytes. Returns the archive's length.
std::uint64_t write_tensor_blob(ByteSink& sink, DType dtype, const Shape& sizes, std::span<const std::byte> data);
/// Writes None, bool, int, float, str, list or dict. Returns the archive's length.
std::uint64_t write_value_blob(ByteSink& sink, const nlohmann::json& value);

/// The archive that write_tensor_blob() writes; its one later entry is the tensor's data.
ZipPlan plan_tensor_blob(DType dtype, const Shape& sizes);
/// The archive of a python value; `pickle` is a whole pickle of it.
ZipPlan plan_value_blob(std::string pickle);

}  // namespace fsdp
