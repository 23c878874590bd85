#pragma once
// The tokenizer of a run with --add-tokens.
#include <filesystem>

#include "lib/ranks/process_group.hpp"
#include "lib/tokenizers/files/new_tokens.hpp"

namespace fsdp::detail {

/// A folder with the grown tokenizer's files, which all ranks read. The folder is hidden in the run's until the run
/// begins, so a job that is refused before leaves nothing and changes no older run. Rank 0 makes and removes the
/// folder.
class NewTokenizer {
 public:
  /// \param run  the run's folder, OUT/RUN
  NewTokenizer(ProcessGroup& world, std::filesystem::path run);
  /// Removes the hidden folder, and the run's if nothing else is in it.
  ~NewTokenizer();
  NewTokenizer(const NewTokenizer&) = delete;
  NewTokenizer& operator=(const NewTokenizer&) = delete;

  /// Collective. \throws IoError
  void write(ProcessGroup& world, const GrownTokenizer& grown);
  /// Where the files are until keep().
  std::filesystem::path hidden() const { return run_ / ".tokenizer"; }
  /// Where the files are afterwards: OUT/RUN/tokenizer.
  std::filesystem::path kept() const { return run_ / "tokenizer"; }
  /// Gives the folder its name, in place of an older run's. Does nothing the second time. \throws IoError
  void keep();

 private:
  std::filesystem::path run_;
  bool is_mine_ = false;  ///< the hidden folder is there, and this rank made it
  bool is_first_;         ///< this is rank 0
};

}  // namespace fsdp::detail
