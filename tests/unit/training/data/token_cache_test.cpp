#include "lib/training/data/token_cache.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "tests/support/temp_files.hpp"

using fsdp::TextOptions;
using fsdp::TokenCache;
using fsdp::test::TempDir;

namespace {

namespace fs = std::filesystem;

void write_again(const fs::path& file, std::string_view text) {
  const auto time = fs::last_write_time(file);
  fsdp::File::create(file).write(text);
  fs::last_write_time(file, time);
}

void age(const fs::path& file, std::chrono::hours hours) {
  const auto then = ::time(nullptr) - std::chrono::seconds(hours).count();
  const timespec times[2] = {{then, 0}, {then, 0}};
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
}

}  // namespace

TEST_SUITE("train/token_cache") {
  TEST_CASE("the fingerprint follows every file of the tokenizer, the template and the data, not their names") {
    const TempDir dir;
    fs::create_directories(dir / "tokenizer");
    fsdp::File::create(dir / "t.jsonl").write("{\"text\": \"the cat\"}\n");
    TextOptions options;
    options.tokenizer_name = (dir / "tokenizer").string();
    const auto now = [&] { return fsdp::token_fingerprint({dir / "t.jsonl"}, options); };
    auto before = now();
    const auto changed = [&] {
      const auto old = std::exchange(before, now());
      return old != before;
    };

    for (const auto* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
                             "special_tokens_map.json", "tokenizer_config.json", "chat_template.jinja"}) {
      CAPTURE(name);
      fsdp::File::create(dir / "tokenizer" / name).write("one");
      CHECK(changed());
      write_again(dir / "tokenizer" / name, "two");
      CHECK(changed());
    }
    write_again(dir / "t.jsonl", "{\"text\": \"two dog\"}\n");  // of the same size and time
    CHECK(changed());
    fs::last_write_time(dir / "t.jsonl", fs::file_time_type::clock::now() + std::chrono::hours(1));
    CHECK(changed());
    options.max_rows = 1;
    CHECK(changed());
    options.conversations.chat_template = (dir / "own.jinja").string();
    CHECK(changed());
    fsdp::File::create(dir / "own.jinja").write("one");
    CHECK(changed());

    fs::copy(dir / "tokenizer", dir / "copy");
    options.tokenizer_name = (dir / "copy").string();
    CHECK_FALSE(changed());
    fs::create_symlink("t.jsonl", dir / "link");
    CHECK(fsdp::token_fingerprint({dir / "link"}, options) == now());
    CHECK_THROWS_AS(fsdp::token_fingerprint({dir / "none"}, options), fsdp::IoError);
  }

  TEST_CASE("an entry that is cut short or is none is made again, the same") {
    const TempDir dir;
    fsdp::File::create(dir / "t.jsonl").write("{\"text\": \"the cat\"}\n");
    const auto tokenizer = fsdp::open_tokenizer("gpt2");
    TextOptions options;
    options.tokenizer_name = "gpt2";
    options.tokenizer = tokenizer.get();
    options.directory = dir / "cache";
    options.quiet = true;
    const fsdp::Logger log(0, fsdp::LogLevel::error);
    const auto world = fsdp::make_single_group();
    const auto prepare = [&] { return fsdp::prepare_tokens(*world, dir / "t.jsonl", options, log, {}); };
    const auto entry = prepare();
    const auto whole = fsdp::read_text_file(entry);
    const auto made = fs::last_write_time(entry);
    CHECK(prepare() == entry);
    CHECK(fs::last_write_time(entry) == made);
    for (const auto bytes : {std::size_t{0}, std::size_t{100}, whole.size() / 2}) {
      CAPTURE(bytes);
      fsdp::File::create(entry).write(whole.substr(0, bytes));
      CHECK(prepare() == entry);
      CHECK(fsdp::read_text_file(entry) == whole);
    }
  }

  TEST_CASE("the end of a large file counts as its beginning does") {
    const TempDir dir;
    std::string text(1 << 20, 'a');
    fsdp::File::create(dir / "t.txt").write(text);
    const auto before = fsdp::token_fingerprint({dir / "t.txt"}, {});
    text.back() = 'b';
    write_again(dir / "t.txt", text);
    CHECK(fsdp::token_fingerprint({dir / "t.txt"}, {}) != before);
  }

  TEST_CASE("what was long not used is removed, and nothing that is not the cache's") {
    const TempDir dir;
    const TokenCache cache(dir / "cache");
    const auto mine = cache.entry("in/texts.jsonl", 0x0123456789abcdefu);
    CHECK(mine == dir / "cache/texts-0123456789abcdef.h5");
    CHECK_FALSE(TokenCache::holds(mine));
    const auto used = cache.entry("in/texts.jsonl", 1), half = dir / "cache/.t-0123456789abcdef.h5.7-ab.tmp";
    const std::vector<fs::path> others{dir / "cache/mine.h5", dir / "cache/x-0123456789ABCDEF.h5",
                                       dir / "cache/.notes.tmp", dir / "cache/CACHEDIR.TAG"};
    for (const auto& file : {mine, used, half, others[0], others[1], others[2]}) fsdp::File::create(file).write("x");
    for (const auto& file : {mine, used, half, others[0], others[1], others[2], others[3]})
      age(file, TokenCache::kKept + std::chrono::hours(1));
    CHECK(TokenCache::holds(used));
    cache.remove_unused();
    CHECK_FALSE(fs::exists(mine));
    CHECK_FALSE(fs::exists(half));
    CHECK(fs::exists(used));
    for (const auto& file : others) CHECK(fs::exists(file));
  }

  TEST_CASE("in a folder that was there before nothing is removed") {
    const TempDir dir;
    const TokenCache cache(dir.path());
    const auto file = cache.entry("t.txt", 1);
    fsdp::File::create(file).write("x");
    age(file, 2 * TokenCache::kKept);
    cache.remove_unused();
    CHECK(fs::exists(file));
    CHECK_FALSE(fs::exists(dir / "CACHEDIR.TAG"));
  }

  TEST_CASE("of several that need an entry one writes it, the others wait and find it") {
    const TempDir dir;
    const TokenCache cache(dir / "cache");
    const auto entry = cache.entry("t.txt", 1);
    std::atomic<int> written{0};
    const auto work = [&] {
      const fsdp::EntryClaim claim(entry, {}, [](const std::string&) {});
      if (TokenCache::holds(entry)) return;
      ++written;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fsdp::publish_text(entry, "tokens");
    };
    {
      std::vector<std::jthread> jobs;
      for (int i = 0; i < 4; ++i) jobs.emplace_back(work);
    }
    CHECK(written == 1);
    CHECK(TokenCache::holds(entry));
    CHECK(std::distance(fs::directory_iterator(dir / "cache"), {}) == 2);  // the tag and the entry
  }

  TEST_CASE("who waits can be stopped") {
    const TempDir dir;
    const auto entry = TokenCache(dir / "cache").entry("t.txt", 1);
    const fsdp::EntryClaim owner(entry, {}, [](const std::string&) {});
    std::string holder;
    CHECK_THROWS_AS(fsdp::EntryClaim(
                        entry, [&] { return !holder.empty(); }, [&](const std::string& words) { holder = words; }),
                    fsdp::RuntimeFailure);
    CHECK(holder.find(std::to_string(::getpid())) != std::string::npos);
  }
}
