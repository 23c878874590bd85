#include "lib/training/data/token_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"
#include "lib/tokenizers/files/chat_templates.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The first line follows https://bford.info/cachedir/: backup programs leave such folders out.
constexpr std::string_view kTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Token files of fsdp-finetune and fsdp-eval, made from texts. Those that were not used for 30 days are removed;\n"
    "# any of them may be removed by hand: it is made again where it is needed.\n";

class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
    mix(0xffu);  // separator that occurs in no UTF-8: "ab" "c" differs from "a" "bc"
  }
  void add_file(const fs::path& file) { add(read_text_file(file)); }
  std::uint64_t value() const { return hash_; }

 private:
  void mix(unsigned byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ull; }
  std::uint64_t hash_ = 0xcbf29ce484222325ull;  // FNV-1a
};

void add_data_file(const fs::path& file, Fingerprint& hash) {
  constexpr std::uint64_t most_bytes = 256 << 10;
  const auto handle = File::open_read(file);
  struct stat status {};
  if (::fstat(handle.fd(), &status) != 0) throw IoError(file.string() + ": cannot be looked at");
  const auto size = handle.size_bytes();
  std::error_code error;
  hash.add(fs::canonical(file, error).string());
  hash.add(fmt::format("{} {}.{:09}", size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
  // The modification time can be set, and the clock of a file server can stand still, so contents count, too.
  std::string bytes(std::min(size, most_bytes), '\0');
  for (const auto offset : {std::uint64_t{0}, size - bytes.size()}) {
    handle.read_at(offset, std::as_writable_bytes(std::span(bytes)));
    hash.add(bytes);
  }
}

/// True for names of entries, "texts-0123456789abcdef.h5" and "texts-0123456789abcdef.ids.json", and of incomplete
/// ones,
/// ".texts-0123456789abcdef.h5.TAG.tmp".
bool is_entry(std::string name) {
  constexpr std::size_t digits = 16;
  for (const std::string ending : {".h5", ".ids.json"}) {
    if (const auto end = name.rfind(ending + "."); name.starts_with('.') && name.ends_with(".tmp") && end != name.npos)
      name.erase(end + ending.size());
    if (!name.ends_with(ending) || name.size() < digits + 1 + ending.size()) continue;
    const auto hash = std::string_view(name).substr(name.size() - digits - ending.size(), digits);
    if (name[name.size() - digits - ending.size() - 1] == '-' &&
        hash.find_first_not_of("0123456789abcdef") == hash.npos)
      return true;
  }
  return false;
}

/// To be raised when the same texts get other ids, or another mask, within a version.
constexpr const char* kEncoding = "2";

}  // namespace

std::uint64_t token_fingerprint(const std::vector<fs::path>& files, const TextOptions& options) {
  Fingerprint hash;
  hash.add(FSDP_VERSION);
  hash.add(kEncoding);
  for (const auto& file : files) add_data_file(file, hash);
  const auto tokenizer = tokenizer_files(options.tokenizer_name);
  if (tokenizer.empty()) hash.add(options.tokenizer_name);
  for (const auto& file : tokenizer) {
    hash.add(file.filename().string());
    hash.add_file(file);
  }
  hash.add(options.field);
  const auto& chat = options.conversations;
  hash.add(fmt::format("{} {} {} {}", name_of(kDataFormNames, chat.form), chat.train_on == TrainOn::all,
                       chat.marks == MarksInTexts::plain_text, chat.pairs == PairEncoding::separate));
  // The tokenizer's own chat template, or the name, file or folder that was given instead.
  hash.add(chat.chat_template);
  const fs::path given = chat.chat_template;
  std::vector<fs::path> templates{given, given / "tokenizer_config.json"};
  for (const auto& directory : {fs::path(options.tokenizer_name), given}) {
    for (auto& file : chat_template_files(directory)) templates.push_back(std::move(file));
  }
  for (const auto& file : templates) {
    std::error_code ignored;
    hash.add(file.filename().string());
    if (fs::is_regular_file(file, ignored)) hash.add_file(file);
  }
  hash.add(std::to_string(options.max_rows));
  if (options.split.is_on()) hash.add(fmt::format("split {} {}", options.split.share, options.split.held_out));
  if (options.layout == TextLayout::stream) hash.add(fmt::format("rows of {}", options.row_inputs));
  return hash.value();
}

TokenCache::TokenCache(fs::path directory) : directory_(std::move(directory)) {
  std::error_code ignored;
  const bool is_new = !fs::exists(directory_, ignored);
  make_directories(directory_);
  if (is_new) create_exclusively(directory_ / "CACHEDIR.TAG", kTag);
}

fs::path TokenCache::entry(const fs::path& data, std::uint64_t fingerprint, std::string_view ending) const {
  constexpr std::size_t most = 100;  // file names have a limit
  return directory_ / fmt::format("{}-{:016x}{}", data.stem().string().substr(0, most), fingerprint, ending);
}

bool TokenCache::holds(const fs::path& entry) {
  std::error_code ignored;
  if (!fs::exists(entry, ignored)) return false;
  const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  ::utimensat(AT_FDCWD, entry.c_str(), times, 0);  // fails for the file of another user, who removes it
  return true;
}

void TokenCache::remove_unused() const {
  try {
    if (read_text_file(directory_ / "CACHEDIR.TAG", 4096) != kTag) return;
  } catch (const Error&) {
    return;
  }
  const auto oldest = ::time(nullptr) - std::chrono::duration_cast<std::chrono::seconds>(kKept).count();
  std::error_code error;
  for (fs::directory_iterator file(directory_, error), end; !error && file != end; file.increment(error)) {
    struct stat status {};
    if (!is_entry(file->path().filename().string()) || ::lstat(file->path().c_str(), &status) != 0) continue;
    std::error_code ignored;
    if (S_ISREG(status.st_mode) && std::max(status.st_atime, status.st_mtime) < oldest)
      fs::remove(file->path(), ignored);
  }
}

EntryClaim::EntryClaim(const fs::path& entry, const std::function<bool()>& stop_wanted,
                       const std::function<void(const std::string&)>& waiting) {
  constexpr auto takeover_after = std::chrono::milliseconds(std::chrono::seconds(90));
  constexpr auto poll = std::chrono::milliseconds(200);
  auto directory = entry;
  directory.replace_filename("." + entry.filename().string() + ".claim");
  ClaimWatch watch(directory, takeover_after);
  for (bool told = false;;) {
    if (const auto generation = watch.try_take()) {
      claim_ = std::make_shared<Claim>(directory, *generation);
      break;
    }
    if (stop_wanted && stop_wanted())
      throw RuntimeFailure("stopped while " + watch.holder() + " was writing " + entry.string());
    if (!told && !watch.holder().empty()) {
      waiting(watch.holder());
      told = true;
    }
    std::this_thread::sleep_for(poll);
  }
  heartbeat_ = std::make_unique<Heartbeat>(takeover_after / 6);
  heartbeat_->add(claim_);
}

EntryClaim::~EntryClaim() {
  heartbeat_.reset();
  if (!claim_->lost()) claim_->end();
}

}  // namespace fsdp
