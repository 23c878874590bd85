// Runs a fuzz target without a fuzzer: on its seed inputs, then on mutations that depend only on their number.
//
//   replay_TARGET FOLDER [--changes N] [--seconds S] [--only NUMBER]
//
// Stops after N mutations or S seconds. A crash, a hang of ten seconds and memory beyond a gigabyte end the process
// after a line that names the input; --only runs this input again.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/hash_functions.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kMostBytes = 65536;
constexpr unsigned kMostSeconds = 10;

std::array<char, 96> fault_text{};  // names the current input; a signal handler cannot format

/// Random numbers that depend only on the number of the input.
class Numbers {
 public:
  explicit Numbers(std::uint64_t input) : state_(fsdp::splitmix64(input)) {}
  std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : fsdp::splitmix64(++state_) % bound; }

 private:
  std::uint64_t state_;
};

/// Overwrites a number with a value at the limits of sizes, signs and nesting.
void overwrite_number(std::string& text, Numbers& numbers) {
  constexpr std::array<std::uint64_t, 10> kValues{0,      1,      0x7f,       0x80,       0xff,
                                                  0x7fff, 0xffff, 0x7fffffff, 0xffffffff, ~0ull};
  const auto value = kValues[numbers.below(kValues.size())];
  const auto width = std::size_t{1} << numbers.below(4);
  if (text.size() < width) return;
  std::memcpy(text.data() + numbers.below(text.size() - width + 1), &value, width);
}

void change_once(std::string& text, const std::vector<std::string>& seeds, Numbers& numbers) {
  const auto place = numbers.below(text.size() + 1);
  switch (numbers.below(7)) {
    case 0:
      if (place < text.size()) text[place] = static_cast<char>(text[place] ^ (1 << numbers.below(8)));
      return;
    case 1:
      if (place < text.size()) text[place] = static_cast<char>(numbers.below(256));
      return;
    case 2:
      return overwrite_number(text, numbers);
    case 3:
      text.erase(place, numbers.below(1 + std::min<std::size_t>(64, text.size() - place)));
      return;
    case 4: {  // duplicates a piece
      const auto piece = text.substr(place, numbers.below(65));
      text.insert(numbers.below(text.size() + 1), piece);
      return;
    }
    case 5: {  // inserts a piece of another seed
      const auto& other = seeds[numbers.below(seeds.size())];
      const auto from = numbers.below(other.size() + 1);
      text.insert(place, other.substr(from, numbers.below(257)));
      return;
    }
    default:
      text.resize(place);
  }
}

/// Runs one input; numbers below seeds.size() are the seeds themselves.
std::string input_of(const std::vector<std::string>& seeds, std::uint64_t number) {
  if (number < seeds.size()) return seeds[number];
  Numbers numbers(number);
  auto text = seeds[numbers.below(seeds.size())];
  for (auto changes = 1 + numbers.below(4); changes > 0; --changes) change_once(text, seeds, numbers);
  text.resize(std::min(text.size(), kMostBytes));
  return text;
}

extern "C" void tell_and_end(int signal) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, fault_text.data(), std::strlen(fault_text.data()));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run_one(const std::vector<std::string>& seeds, std::uint64_t number) {
  std::snprintf(fault_text.data(), fault_text.size(), "\nfailed on input --only %llu\n",
                static_cast<unsigned long long>(number));
  const auto text = input_of(seeds, number);
  ::alarm(kMostSeconds);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  ::alarm(0);
}

std::vector<std::string> read_seeds(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const auto& file : files) seeds.push_back(fsdp::read_text_file(file, kMostBytes * 16));
  return seeds;
}

struct Arguments {
  std::filesystem::path folder;
  std::uint64_t changes = 20000, only = ~0ull;
  double seconds = 2;
};

Arguments parse(int count, char** words) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const char* value = i + 1 < count ? words[i + 1] : "0";
    if (word == "--changes") {
      arguments.changes = std::strtoull(value, nullptr, 10);
    } else if (word == "--seconds") {
      arguments.seconds = std::strtod(value, nullptr);
    } else if (word == "--only") {
      arguments.only = std::strtoull(value, nullptr, 10);
    } else {
      arguments.folder = word;
      continue;
    }
    ++i;
  }
  return arguments;
}

}  // namespace

int main(int count, char** words) {
  const auto arguments = parse(count, words);
  const auto seeds = read_seeds(arguments.folder);
  if (seeds.empty()) {
    std::fprintf(stderr, "%s holds no inputs\n", arguments.folder.c_str());
    return 1;
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers reserve terabytes
  const struct rlimit memory { 1u << 30, 1u << 30 };
  ::setrlimit(RLIMIT_AS, &memory);
#endif
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(signal, tell_and_end);
  if (arguments.only != ~0ull) {
    run_one(seeds, arguments.only);
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::uint64_t number = 0;
  for (; number < seeds.size() || (number < seeds.size() + arguments.changes && elapsed() < arguments.seconds);
       ++number)
    run_one(seeds, number);
  std::printf("%zu inputs and %llu changes of them in %.1f s\n", seeds.size(),
              static_cast<unsigned long long>(number - seeds.size()), elapsed());
  return 0;
}
