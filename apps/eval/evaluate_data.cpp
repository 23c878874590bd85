#include "apps/eval/evaluate_data.hpp"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/stop_signal.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/prepare_data.hpp"

namespace fsdp {
namespace {

/// A folder in $TMPDIR that all ranks of a node see; removed with its contents on destruction.
class ScratchDirectory {
 public:
  /// Collective over the node's ranks. \throws IoError on all of them
  explicit ScratchDirectory(ProcessGroup& node) : owner_(node.rank() == 0) {
    path_ = text_of_root(node, [] {
      std::error_code error;
      auto name = (std::filesystem::temp_directory_path(error) / "fsdp-eval.XXXXXX").string();
      if (error || ::mkdtemp(name.data()) == nullptr) {
        throw IoError((error ? "the temporary folder" : name) + ": " +
                      (error ? error.message() : std::system_category().message(errno)) +
                      ": texts cannot be encoded there; name another place with --cache-dir or TMPDIR");
      }
      return name;
    });
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    if (owner_) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  bool owner_;
  std::filesystem::path path_;
};

/// True when `data` is texts rather than a token file. \throws IoError when it is neither a folder nor can be read
bool holds_texts(const std::filesystem::path& data) {
  if (is_token_file(data)) return false;
  if (!std::filesystem::is_directory(data)) File::open_read(data).close();
  return true;
}

bool same_lengths(const std::filesystem::path& a, const std::filesystem::path& b) {
  if (a == b) return true;
  const auto of_a = open_token_file(a), of_b = open_token_file(b);
  if (of_a->num_records() != of_b->num_records()) return false;
  for (std::int64_t i = 0; i < of_a->num_records(); ++i) {
    if (of_a->length(i) != of_b->length(i)) return false;
  }
  return true;
}

}  // namespace

EvaluationInput open_evaluation_data(ProcessGroup& world, const EvaluateOptions& options,
                                     std::vector<EvaluationSubject>& subjects, const Logger& log) {
  EvaluationInput input;
  input.texts = holds_texts(options.data);
  const auto node = world.split_by_node();
  std::optional<ScratchDirectory> scratch;
  const StopSignal signal;  // so that the temporary folder is removed when a signal interrupts the encoding
  TextOptions how;
  how.field = options.data_field;
  how.conversations = options.conversations;
  how.max_rows = options.max_rows;
  how.quiet = options.runtime.quiet;
  how.directory = options.cache_dir;
  if (input.texts && options.cache_dir.empty()) how.directory = scratch.emplace(*node).path();

  if (!input.texts) tell_of_unread_data(*open_token_file(options.data), log);

  SequenceLimit limit{options.seq_len, subjects.front().config.block_size};
  for (const auto& subject : subjects) limit.positions = std::min(limit.positions, subject.config.block_size);
  std::vector<std::filesystem::path> files;
  for (auto& subject : subjects) {
    if (input.texts) open_subject_tokenizer(subject, options.data + " holds texts: it");
    how.tokenizer_name = subject.tokenizer_name;
    how.tokenizer = subject.tokenizer.get();
    // Each node has a temporary folder of its own.
    auto& group = scratch ? *node : world;
    files.push_back(input.texts ? prepare_tokens(group, options.data, how, log, [&] { return signal.received() != 0; })
                                : std::filesystem::path(options.data));
    EvaluationData data;
    data.reader.emplace(files.back(), limit, subject.config.vocab_size);
    data.rows = data.reader->num_records();
    if (options.max_rows > 0) data.rows = std::min(data.rows, options.max_rows);
    run_agreed(world, [&] {
      if (world.rank() == 0) data.reader->require_targets(data.rows);
    });
    if (options.pack) data.reader->pack({0, false}, data.rows);
    data.ids_not_scored = data.reader->ids_left_out(data.rows);
    input.of_subject.push_back(std::move(data));
    input.same_tokens = input.same_tokens && same_lengths(files.front(), files.back());
  }
  world.barrier();  // all ranks have opened the files in the folder that is removed now
  if (signal.received() != 0) throw RuntimeFailure("stopped by a signal before the evaluation began");
  return input;
}

}  // namespace fsdp
