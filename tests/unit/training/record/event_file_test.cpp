#include "lib/training/record/event_file.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/base/messages/log.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

std::string bytes_of(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::uint64_t number_at(const std::string& bytes, std::size_t at, int size) {
  std::uint64_t value = 0;
  for (int i = size; i-- > 0;)
    value = value << 8U | static_cast<unsigned char>(bytes.at(at + static_cast<std::size_t>(i)));
  return value;
}

/// The data of each record, its checksums compared.
std::vector<std::string> records(const std::filesystem::path& file) {
  const auto bytes = bytes_of(file);
  std::vector<std::string> found;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = number_at(bytes, at, 8);
    CHECK(number_at(bytes, at + 8, 4) == fsdp::detail::masked_crc32c(bytes.substr(at, 8)));
    found.push_back(bytes.substr(at + 12, length));
    CHECK(number_at(bytes, at + 12 + length, 4) == fsdp::detail::masked_crc32c(found.back()));
    at += 16 + length;
  }
  return found;
}

}  // namespace

TEST_SUITE("train/event_file") {
  TEST_CASE("masked_crc32c: the check value of CRC-32C, and TensorFlow's mask") {
    const std::uint32_t check = 0xe3069283U;  // of "123456789"
    CHECK(fsdp::detail::masked_crc32c("123456789") == ((check >> 15U | check << 17U) + 0xa282ead8U));
  }

  TEST_CASE("a record for each line with numbers; what is no number is left out") {
    const test::TempDir dir;
    const Logger log(0, LogLevel::warning);
    {
      EventFile events(dir.path(), -1, log);
      events.add({{"step", 3}, {"loss", 1.5}, {"products", "float32"}, {"means", {{"margin", 0.5}}}});
      events.add({{"step", 4}, {"loss", nullptr}});  // NaN in metrics.jsonl
      events.add({{"step", 5}, {"val_loss", 2.0}});
      events.add({{"step", 5}, {"val_loss", 3.0}, {"val_set", "hard"}});
      events.add_text("options", "| a | b |");
    }
    const auto files = EventFile::in(dir.path());
    REQUIRE(files.size() == 1);
    const auto found = records(files[0]);
    REQUIRE(found.size() == 6);  // the second says that a session starts
    CHECK(found[0].find("brain.Event:2") != std::string::npos);
    CHECK(found[2].find("train/loss") != std::string::npos);
    CHECK(found[2].find("train/margin") != std::string::npos);
    CHECK(found[2].find("products") == std::string::npos);
    CHECK(found[3].find("validation/loss") != std::string::npos);
    CHECK(found[4].find("validation/hard/loss") != std::string::npos);
    CHECK(found[4].find("validation/loss") == std::string::npos);
    CHECK(found[5].find("options/text_summary") != std::string::npos);
  }

  TEST_CASE("a file that was removed is followed by another, which is whole") {
    const test::TempDir dir;
    const Logger log(0, LogLevel::error);
    EventFile events(dir.path(), -1, log);
    events.add({{"step", 3}, {"loss", 1.5}});
    const auto first = events.path();
    std::filesystem::remove(first);
    events.add({{"step", 4}, {"loss", 1.5}});
    events.add({{"step", 5}, {"loss", 1.5}});
    REQUIRE(EventFile::in(dir.path()).size() == 1);
    CHECK(EventFile::in(dir.path())[0] == events.path());
    const auto found = records(events.path());
    REQUIRE(found.size() == 3);
    CHECK(found[0].find("brain.Event:2") != std::string::npos);
    CHECK(found[2].find("train/loss") != std::string::npos);
  }

  TEST_CASE("the name of a new file comes after those that are there, whatever the clock says") {
    const test::TempDir dir;
    const Logger log(0, LogLevel::warning);
    replace_file(dir.path() / "events.out.tfevents.4102444800.of-2100.1.0", "");
    replace_file(dir.path() / "events.out.tfevents.notes", "");
    std::vector<std::string> names;
    for (int i = 0; i < 3; ++i) {
      const EventFile events(dir.path(), -1, log);
      names.push_back(events.path().filename().string());
    }
    CHECK(names[0].starts_with("events.out.tfevents.4102444801."));
    CHECK(names[0] < names[1]);
    CHECK(names[1] < names[2]);
  }

  TEST_CASE("a restart begins with the two records that hide later points; two files of one second differ in name") {
    const test::TempDir dir;
    const Logger log(0, LogLevel::warning);
    { const EventFile first(dir.path(), -1, log); }
    { const EventFile second(dir.path(), 7, log); }
    const auto files = EventFile::in(dir.path());
    REQUIRE(files.size() == 2);
    const auto a = records(files[0]).size(), b = records(files[1]).size();
    CHECK(std::min(a, b) == 2);
    CHECK(std::max(a, b) == 3);
  }
}
