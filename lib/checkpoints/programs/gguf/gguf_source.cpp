// A source of a GGUF file. Tensors have llama.cpp's names and PyTorch's shapes; quantized ones are read as bytes.
#include "lib/checkpoints/programs/gguf/gguf_source.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/gguf/gguf.hpp"
#include "lib/checkpoints/source/chunked_source.hpp"
#include "lib/checkpoints/source/tensor_in_file.hpp"

namespace fsdp {
namespace {

class GgufSource final : public ChunkedSource {
 public:
  explicit GgufSource(const std::filesystem::path& path) {
    info_.format = kGgufMagic;
    info_.directory = path.parent_path().empty() ? "." : path.parent_path();
    files_.add(path);
    auto header = read_gguf_header(*files_.open(0));
    info_.metadata = std::move(header.metadata);
    for (auto& found : header.tensors) {
      SourceTensor tensor{.name = found.name, .path = {found.name}, .shape = {}};
      if (found.type->dtype) {
        tensor.dtype = *found.type->dtype;
        tensor.shape = std::move(found.shape);
      } else {
        tensor.dtype = DType::u8;
        tensor.shape = {static_cast<std::int64_t>(found.size_bytes)};
        tensor.other = OtherType{std::string(found.type->name), std::move(found.shape)};
      }
      tensor.stored_bytes = found.size_bytes;
      TensorInFile stored;
      stored.storage_begin_bytes = found.begin_bytes;
      stored.view = contiguous_view(tensor.dtype, tensor.shape);
      stored.storage = static_cast<std::uint32_t>(chunks_.size());
      chunks_.push_back(std::move(stored));
      Block all{.offsets = Shape(tensor.shape.size(), 0), .sizes = tensor.shape};
      add_tensor(std::move(tensor), {std::move(all)}, path.string());
    }
    info_.files = files_.paths();
  }

  LoadedValue value(std::size_t /*value*/) const override {
    throw std::logic_error("GGUF files hold no python values");
  }

 protected:
  std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    return read_stored(*files_.open(0), chunks_[chunk], first, count, out, sums);
  }

 private:
  FileSet files_;
  std::vector<TensorInFile> chunks_;
};

}  // namespace

std::unique_ptr<Source> open_gguf(const std::filesystem::path& path) { return std::make_unique<GgufSource>(path); }

}  // namespace fsdp
