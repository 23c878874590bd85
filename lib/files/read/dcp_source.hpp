#pragma once
// A DCP directory as a source; see lib/files/formats/dcp.hpp for the format.
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/files/formats/dcp.hpp"
#include "lib/files/formats/safetensors.hpp"
#include "lib/files/read/chunked_source.hpp"
#include "lib/files/read/tensor_in_file.hpp"

namespace fsdp {

class DcpSource : public ChunkedSource {
 public:
  /// Reads the metadata only and checks that all chunks and data files are there. \throws FormatError, IoError
  explicit DcpSource(const std::filesystem::path& directory);

  LoadedValue value(std::size_t value) const override;

  /// True for a directory that has the DCP metadata of all ranks or of one.
  static bool recognizes(const std::filesystem::path& directory);

 protected:
  std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>* sums) const override;
  bool chunk_prefers_whole(ChunkNumber chunk) const override;
  std::optional<RecordedSum> recorded_sum(std::uint32_t storage) const override;

 private:
  struct Item {
    std::uint32_t file = 0;
    std::uint64_t offset_bytes = 0, length_bytes = 0;
    bool zstd = false;
    std::uint32_t tensor = 0;  // chunks only
  };
  /// The location of the tensor of an item in its data file.
  struct Found {
    TensorInFile stored;
    std::string entry;  // for messages
  };

  void add_items(DcpMetadata& metadata);
  std::uint32_t file_number(const std::string& name);
  void check_files() const;
  void count_ranks();
  void read_run();
  void check_view(const TensorView& view, ChunkNumber chunk, const std::string& where) const;
  const Found& find(ChunkNumber chunk) const;
  std::unique_ptr<const Found> look_up(ChunkNumber chunk) const;
  std::unique_ptr<const Found> look_up_safetensors(const Item& item, ChunkNumber chunk) const;
  [[noreturn]] void fail(const Item& item, const std::string& what) const;

  std::filesystem::path index_;  // for messages
  FileSet files_;
  std::map<std::string, std::uint32_t> file_numbers_;
  std::vector<Item> chunks_, value_items_;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<const Found>> found_;  // by chunk; null until it is looked up
  mutable std::map<std::uint32_t, std::shared_ptr<const SafetensorsReader>> headers_;  // of files that are safetensors
};

}  // namespace fsdp
