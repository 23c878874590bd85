#include "lib/base/files/nameless_file.hpp"

#include "lib/base/files/shared_write.hpp"

namespace fsdp {

File nameless_file(const std::filesystem::path& file, const char* what) {
  auto name = file;
  name.replace_filename("." + file.filename().string() + "." + process_tag() + "." + what + ".tmp");
  auto created = File::create_new(name);
  std::filesystem::remove(name);
  return created;
}

}  // namespace fsdp
