#include "apps/finetune/start/new_tokenizer.hpp"

#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp::detail {

NewTokenizer::NewTokenizer(ProcessGroup& world, std::filesystem::path run)
    : run_(std::move(run)), is_first_(world.rank() == 0) {}

NewTokenizer::~NewTokenizer() {
  if (!is_mine_) return;
  std::error_code ignored;
  std::filesystem::remove_all(hidden(), ignored);
  std::filesystem::remove(run_, ignored);  // fails unless the folder is empty
}

void NewTokenizer::write(ProcessGroup& world, const GrownTokenizer& grown) {
  run_agreed(world, [&] {
    if (!is_first_) return;
    std::error_code error;
    std::filesystem::remove_all(hidden(), error);  // of a job that was killed
    is_mine_ = true;
    std::filesystem::create_directories(hidden(), error);
    if (error) throw IoError(hidden().string() + ": cannot be made: " + error.message());
    for (const auto& [name, text] : grown.files) replace_file(hidden() / name, text);
  });
}

void NewTokenizer::keep() {
  if (!is_mine_) return;
  std::error_code error;
  std::filesystem::remove_all(kept(), error);
  if (!error) std::filesystem::rename(hidden(), kept(), error);
  if (error) throw IoError(kept().string() + ": cannot be made: " + error.message());
  is_mine_ = false;
}

}  // namespace fsdp::detail
