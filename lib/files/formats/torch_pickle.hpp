#pragma once
// Tensors inside the pickle of a torch.save archive, and the archives of DCP data files laid out before their data.
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/base/dtype.hpp"
#include "lib/files/formats/pickle_writer.hpp"
#include "lib/files/formats/shard_record.hpp"
#include "lib/files/formats/zip_records.hpp"

namespace fsdp {

/// A contiguous tensor that is all of the storage whose bytes are the entry "data/<storage_key>".
void pickle_tensor(PickleWriter& pickle, DType dtype, const Shape& sizes, std::string_view storage_key);

/// The archive that write_tensor_blob() writes; its one later entry is the tensor's data.
ZipPlan plan_tensor_blob(DType dtype, const Shape& sizes);
/// The archive of a python value; `pickle` is a whole pickle of it.
ZipPlan plan_value_blob(std::string pickle);

}  // namespace fsdp
