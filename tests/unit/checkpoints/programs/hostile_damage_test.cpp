// Cuts one small checkpoint of each format at every length and flips random bits: reading must give the right content
// or a refusal. FSDP_ALL=1: three times as many bits.
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "tests/unit/checkpoints/programs/dcp_test_support.hpp"
#include "tests/unit/checkpoints/programs/hostile_support.hpp"

using namespace fsdp;

namespace {

constexpr std::size_t allowed_allocation = 64u << 20;
const int flips = std::getenv("FSDP_ALL") != nullptr ? 3000 : 1000;

/// A copy of a fixture whose files can be damaged.
class Damaged {
 public:
  /// \param checksummed  the format records checksums of its data, so that a wrong byte must be found
  Damaged(const std::filesystem::path& origin, bool checksummed) : checksummed_(checksummed) {
    path_ = directory_ / origin.filename().string();
    std::filesystem::copy(origin, path_, std::filesystem::copy_options::recursive);
    truth_ = test::read_everything(path_);
    CHECK_MESSAGE(!truth_.refused, truth_.message);
    CHECK(truth_.tensors.size() > 0);
    if (std::filesystem::is_directory(path_)) {
      for (const auto& entry : std::filesystem::directory_iterator(path_)) files_.push_back(entry.path());
      std::sort(files_.begin(), files_.end());
    } else {
      files_ = {path_};
    }
    test::reset_largest_allocation();
  }
  ~Damaged() {
    CHECK(test::largest_allocation() < allowed_allocation);
    CHECK(refused > 0);
  }
  Damaged(const Damaged&) = delete;
  Damaged& operator=(const Damaged&) = delete;

  const std::vector<std::filesystem::path>& files() const { return files_; }

  void cut_everywhere(const std::filesystem::path& file, std::size_t step = 1) {
    const std::string whole = read_text_file(file);
    for (std::size_t length = whole.size() - 1; length < whole.size(); length -= step) {
      CAPTURE(file);
      CAPTURE(length);
      std::filesystem::resize_file(file, length);
      read();
    }
    overwrite(file, whole);
  }

  void flip_bits(const std::filesystem::path& file, int count) {
    const std::string whole = read_text_file(file);
    if (whole.empty()) return;
    std::mt19937 generator(static_cast<unsigned>(whole.size()));
    std::string changed = whole;
    for (int i = 0; i < count; ++i) {
      // Mostly one bit, sometimes a few, which a 32-bit checksum still detects.
      std::vector<std::size_t> places(1 + (generator() % 8 == 0) * 3);
      for (auto& at : places) {
        at = generator() % whole.size();
        changed[at] = static_cast<char>(changed[at] ^ 1 << generator() % 8);
      }
      CAPTURE(file);
      CAPTURE(places);
      overwrite(file, changed);
      read();
      for (const auto at : places) changed[at] = whole[at];
    }
    overwrite(file, whole);
  }

  int refused = 0, right = 0;

 private:
  /// Overwrites a file that has at most as many bytes. Emptying the file first would make ext4 wait for the disk.
  static void overwrite(const std::filesystem::path& file, std::string_view bytes) {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.flush();
    REQUIRE(out);
  }

  void read() {
    const auto found = test::read_everything(path_);
    found.refused ? ++refused : ++right;
    if (found.refused) {
      CHECK_FALSE(found.message.empty());
      return;
    }
    if (!checksummed_) return;
    for (const auto& [name, tensor] : found.tensors) {
      const auto original = truth_.tensors.find(name);
      // A changed name, shape or type is visible; changed bytes under the old names would not be.
      if (original == truth_.tensors.end() || original->second.shape != tensor.shape ||
          original->second.dtype != tensor.dtype) {
        continue;
      }
      if (original->second.bytes != tensor.bytes) FAIL_CHECK("silently different: ", name);
    }
  }

  test::TempDir directory_;
  std::filesystem::path path_;
  std::vector<std::filesystem::path> files_;
  test::Outcome truth_;
  bool checksummed_;
};

}  // namespace

TEST_SUITE("source/hostile_damage") {
  TEST_CASE("torch.save file") {
    Damaged checkpoint(test::fixture("pt_t211_zoo") / "ckpt.pt", true);
    checkpoint.cut_everywhere(checkpoint.files()[0]);
    CHECK(checkpoint.right == 0);
    checkpoint.flip_bits(checkpoint.files()[0], flips);
    CHECK(checkpoint.right > 0);  // flips in the padding change nothing
  }

  TEST_CASE("torch.save file without checksums") {
    Damaged checkpoint(test::fixture("pt_t211_nocrc") / "ckpt.pt", false);
    checkpoint.flip_bits(checkpoint.files()[0], flips);
    CHECK(checkpoint.right > 0);
  }

  TEST_CASE("legacy torch.save file") {
    Damaged checkpoint(test::fixture("pt_t211_zoo_legacy") / "ckpt.pt", false);
    checkpoint.cut_everywhere(checkpoint.files()[0]);
    CHECK(checkpoint.right == 0);
    checkpoint.flip_bits(checkpoint.files()[0], flips);
    CHECK(checkpoint.right > 0);
  }

  TEST_CASE("safetensors file") {
    Damaged checkpoint(test::fixture("st_zoo") / "model.safetensors", false);
    checkpoint.cut_everywhere(checkpoint.files()[0]);
    CHECK(checkpoint.right == 0);
    checkpoint.flip_bits(checkpoint.files()[0], flips);
    CHECK(checkpoint.right > 0);
  }

  TEST_CASE("safetensors directory with an index") {
    Damaged checkpoint(test::fixture("dcp_t211_ws2_hf_consolidated") / "ckpt", false);
    const auto index = std::find_if(checkpoint.files().begin(), checkpoint.files().end(),
                                    [](const auto& file) { return file.extension() == ".json"; });
    REQUIRE(index != checkpoint.files().end());
    checkpoint.cut_everywhere(*index);
    checkpoint.flip_bits(*index, flips);
  }

  TEST_CASE("safetensors shards of the distributed writer") {
    Damaged checkpoint(test::fixture("dcp_t211_ws2_hf_sharded") / "ckpt", false);
    for (const auto& file : checkpoint.files()) {
      checkpoint.cut_everywhere(file, 37);
      checkpoint.flip_bits(file, flips / 4);
    }
  }

  TEST_CASE("DCP") {
    Damaged checkpoint(test::fixture("dcp_t201_ws2_app") / "ckpt", true);
    for (const auto& file : checkpoint.files()) {
      checkpoint.cut_everywhere(file, file.filename() == ".metadata" ? 1 : 17);
      checkpoint.flip_bits(file, flips / 2);
    }
  }

  TEST_CASE("DCP as this library writes it") {
    const test::TempDir origin;
    test::SmallCheckpoint().write(origin.path());
    Damaged checkpoint(origin.path(), true);
    for (const auto& file : checkpoint.files()) {
      checkpoint.cut_everywhere(file);
      checkpoint.flip_bits(file, flips);
    }
    CHECK(checkpoint.right > 0);
  }

  TEST_CASE("DCP with an index for each rank") {
    Damaged checkpoint(test::fixture("dcp_t211_ws2_nocollectives") / "ckpt", true);
    for (const auto& file : checkpoint.files()) {
      const bool is_index = file.extension() == ".metadata";
      checkpoint.cut_everywhere(file, is_index ? 11 : 997);
      checkpoint.flip_bits(file, flips / 4);
    }
  }

  TEST_CASE("DCP with zstd items") {
    Damaged checkpoint(test::fixture("dcp_t211_ws2_zstd") / "ckpt", true);
    for (const auto& file : checkpoint.files()) {
      checkpoint.cut_everywhere(file, 97);
      checkpoint.flip_bits(file, flips / 4);
    }
  }

  TEST_CASE("DCP whose data files are safetensors") {
    Damaged checkpoint(test::fixture("dcp_t211_ws2_stformat") / "ckpt", false);
    for (const auto& file : checkpoint.files()) {
      checkpoint.cut_everywhere(file, 97);
      checkpoint.flip_bits(file, flips / 4);
    }
  }
}
