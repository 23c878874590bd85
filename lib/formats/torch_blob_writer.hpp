#pragma once
// Lays out torch.save archives that hold one tensor or one value, the unit of DCP data files, before the data is there,
// and writes such archives to a stream.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/types/dtype.hpp"
#include "lib/formats/byte_sink.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"
#include "lib/formats/shard_record.hpp"
#include "lib/formats/zip.hpp"

namespace fsdp {

/// Writes a contiguous tensor that fills its storage, whose bytes are the entry "data/<storage_key>".
void pickle_tensor(PickleWriter& pickle, DType dtype, const Shape& sizes, std::string_view storage_key);

/// Plans the archive of a contiguous tensor, whose data is the one late entry.
ZipPlan plan_tensor_blob(DType dtype, const Shape& sizes);
/// Plans the archive of a python value; `pickle` is a whole pickle of the value.
ZipPlan plan_value_blob(std::string pickle);

/// Writes a contiguous tensor of shape `sizes`; `data` has exactly its bytes. Returns the length of the archive.
std::uint64_t write_tensor_blob(ByteSink& sink, DType dtype, const Shape& sizes, std::span<const std::byte> data);
/// Writes None, bool, int, float, str, list or dict. Returns the length of the archive.
std::uint64_t write_value_blob(ByteSink& sink, const nlohmann::json& value);

}  // namespace fsdp
