#include "lib/training/objectives/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/tensor/sequences.hpp"

namespace fsdp {
namespace {

/// Keeps what would be joined.
class Recorder final : public JointLoss {
 public:
  at::Tensor join(const MicroBatch&, const at::Tensor& nats_S, StepSums&) const override {
    nats_S_ = nats_S;
    return nats_S;
  }
  const at::Tensor& nats_S() const { return nats_S_; }

 private:
  mutable at::Tensor nats_S_;
};

/// The bytes before the numbers of a NumPy array of `count` float64, version 1.0, of which there are 128.
std::string npy_header(std::size_t count) {
  auto text = fmt::format("{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}", count);
  constexpr std::size_t kHeader_bytes = 128, kBefore = 10;
  text.resize(kHeader_bytes - kBefore - 1, ' ');
  const char size = static_cast<char>(kHeader_bytes - kBefore);
  return std::string("\x93NUMPY\x01\x00", 8) + size + '\0' + text + '\n';
}

}  // namespace

std::optional<std::vector<double>> sequence_log_probs(ModelRuntime& runtime, const TokenLoader& rows,
                                                      std::int64_t micro_batch_size,
                                                      const std::function<void(double done)>& progress,
                                                      const std::function<bool()>& stopped) {
  const auto& ranks = runtime.data_ranks();
  std::vector<double> log_probs(static_cast<std::size_t>(rows.num_records()));
  const auto per_round = micro_batch_size * ranks.size;
  for (std::int64_t first = 0; first < rows.num_rows(); first += per_round) {
    if (stopped && stopped()) return std::nullopt;
    const auto count = std::min(per_round, rows.num_rows() - first);
    const auto [begin, end] = ranks.share(count);
    std::vector<std::int64_t> numbers, records;
    for (auto row = first + static_cast<std::int64_t>(begin); row < first + static_cast<std::int64_t>(end); ++row) {
      numbers.push_back(row);
      for (const auto record : rows.records_of(row)) records.push_back(record);
    }
    auto batch = rows.read(numbers);
    send_to(runtime.ops(), batch);
    const Recorder recorder;
    batch.joint = &recorder;
    runtime.engine().evaluate(batch);
    runtime.synchronize();
    if (!records.empty()) {
      const auto nats_S = recorder.nats_S().cpu();
      for (std::size_t i = 0; i < records.size(); ++i)
        log_probs[static_cast<std::size_t>(records[i])] = -nats_S.const_data_ptr<double>()[i];
    }
    if (progress) progress(static_cast<double>(first + count) / static_cast<double>(rows.num_rows()));
  }
  share_figures(runtime.world(), log_probs);
  return log_probs;
}

void share_figures(ProcessGroup& world, std::span<double> figures) {
  constexpr std::size_t kBlock = 1 << 16;  // a reduction takes memory for every rank's values
  for (std::size_t first = 0; first < figures.size(); first += kBlock) {
    world.all_reduce(figures.subspan(first, std::min(kBlock, figures.size() - first)), Reduce::sum);
  }
}

void write_log_probs(const std::filesystem::path& file, std::span<const double> log_probs) {
  auto bytes = npy_header(log_probs.size());
  const auto numbers = std::as_bytes(log_probs);
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size());
  replace_file(file, bytes);
}

std::vector<double> read_log_probs(const std::filesystem::path& file, std::int64_t records) {
  const auto handle = File::open_read(file);
  const auto expected = npy_header(static_cast<std::size_t>(records));
  std::string header(std::min<std::uint64_t>(expected.size(), handle.size_bytes()), '\0');
  handle.read_at(0, std::as_writable_bytes(std::span(header)));
  std::vector<double> log_probs(static_cast<std::size_t>(records));
  if (header != expected || handle.size_bytes() != expected.size() + log_probs.size() * sizeof(double)) {
    throw FormatError(
        fmt::format("{}: is no NumPy array of {} float64, one for each document of the data: were they "
                    "computed for this data?",
                    file.string(), records));
  }
  handle.read_at(expected.size(), std::as_writable_bytes(std::span(log_probs)));
  const auto bad = std::ranges::find_if(log_probs, [](double value) { return !std::isfinite(value); });
  if (bad != log_probs.end())
    throw FormatError(fmt::format("{}: element {} is not finite", file.string(), bad - log_probs.begin()));
  return log_probs;
}

}  // namespace fsdp
