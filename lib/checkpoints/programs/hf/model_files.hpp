#pragma once
// The files of a model as transformers names them: one whole file, or shards NAME-00001-of-00003 with an index.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

struct IndexedFiles {
  std::map<std::string, std::string> file_of;          ///< names of files, by tensor
  std::map<std::string, std::filesystem::path> files;  ///< by name
};

/// Reads weight_map of an index. \param whole  a file beside the index that is another model unless the index names it
/// \throws FormatError for what is no index, or beside such a file; MissingInput for a file that is not there
IndexedFiles read_index(const std::filesystem::path& index, const std::string& whole);

/// Whether an index has a tensor of `file`. \param file_of  names of files, by tensor  \param name  of `file` in the
/// index \throws FormatError if the index has the tensor in another file
bool is_indexed(const std::string& tensor, const std::map<std::string, std::string>& file_of,
                const std::filesystem::path& file, const std::string& name);

/// A remark on the tensors of a file that its index does not have; "" for none.
std::string remark_of_unindexed(const std::filesystem::path& file, const std::vector<std::string>& tensors);

/// \param files  read without an index \throws MissingInput naming the first shard that is not among them
void refuse_missing_shards(const std::vector<std::filesystem::path>& files);

/// Lists the files whose names begin and end so, sorted.
std::vector<std::filesystem::path> files_called(const std::filesystem::path& directory, const std::string& prefix,
                                                const std::string& suffix);

}  // namespace fsdp
