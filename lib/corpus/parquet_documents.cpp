#include "lib/corpus/parquet_documents.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <system_error>

#include "lib/base/error.hpp"

namespace fsdp {
namespace detail {
namespace {

template <class Function>
Function* find_symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

OpenParquetFunction* find_parquet_plugin(const std::filesystem::path& file) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw RuntimeFailure("cannot tell where this program lies (/proc/self/exe: " + error.message() +
                         "), and so not where its Parquet support is");
  }
  const auto candidates = parquet_plugin_candidates(program.parent_path());
  for (const auto& candidate : candidates) {
    if (std::filesystem::exists(candidate, error)) return open_parquet_plugin(candidate, kParquetPluginAbi);
  }
  throw RuntimeFailure(
      fmt::format("{}: is a Parquet file, and the support for these is missing (neither {} nor {} exists): build again "
                  "with pyarrow or Arrow's C++ libraries there (scripts/setup), or give JSON Lines, CSV or text",
                  file.string(), candidates.front().string(), candidates.back().string()));
}

/// Arrow's messages may end in line ends.
std::string trimmed(const std::string& text) { return text.substr(0, text.find_last_not_of(" \n") + 1); }

class ParquetDocuments : public Documents {
 public:
  ParquetDocuments(const std::filesystem::path& file, std::unique_ptr<ParquetColumn> column)
      : file_(file), file_bytes_(std::filesystem::file_size(file)), column_(std::move(column)) {}

  bool next(std::string& text) override {
    const auto step = column_->next(text);
    if (step == ParquetColumn::Step::failed) throw FormatError(file_.string() + ": " + trimmed(text));
    return step == ParquetColumn::Step::document;
  }
  std::string where() const override { return file_.string() + ": row " + std::to_string(column_->row()); }
  std::int64_t bytes_read() const override {
    const auto rows = static_cast<double>(column_->num_rows());
    const auto done = static_cast<double>(column_->row() + 1);
    return rows > 0 ? static_cast<std::int64_t>(done / rows * static_cast<double>(file_bytes_)) : 0;
  }

 private:
  std::filesystem::path file_;
  std::uintmax_t file_bytes_;
  std::unique_ptr<ParquetColumn> column_;
};

}  // namespace

std::vector<std::filesystem::path> parquet_plugin_candidates(const std::filesystem::path& program_directory) {
  const auto lib = program_directory.parent_path() / "lib";  // also the build tree's
  return {lib / "fsdp" / "libfsdp_parquet.so", lib / "libfsdp_parquet.so"};
}

OpenParquetFunction* open_parquet_plugin(const std::filesystem::path& library, const std::string& abi) {
  // Never unloaded: Arrow keeps threads and state of its own.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* text = ::dlerror();
    throw RuntimeFailure(
        fmt::format("the Parquet support does not load: {}", text != nullptr ? text : "unknown reason"));
  }
  auto* abi_of = find_symbol<ParquetAbiFunction>(handle, kParquetAbiSymbol);
  auto* open = find_symbol<OpenParquetFunction>(handle, kOpenParquetSymbol);
  if (abi_of == nullptr || open == nullptr) {
    throw RuntimeFailure(library.string() + " is not the Parquet support of this toolkit: it lacks its entry points");
  }
  if (abi != abi_of()) {
    throw RuntimeFailure(
        fmt::format("{} belongs to another build: it is for \"{}\", this program is \"{}\"; install both together",
                    library.string(), abi_of(), abi));
  }
  return open;
}

}  // namespace detail

std::unique_ptr<Documents> open_parquet(const std::filesystem::path& file, const std::string& field) {
  std::string failure;
  std::unique_ptr<detail::ParquetColumn> column(
      detail::find_parquet_plugin(file)(file.c_str(), field.c_str(), &failure));
  if (column == nullptr) throw FormatError(file.string() + ": " + detail::trimmed(failure));
  return std::make_unique<detail::ParquetDocuments>(file, std::move(column));
}

}  // namespace fsdp
