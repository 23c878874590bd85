#include "lib/training/objectives/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/compute/tensor/sequences.hpp"
#include "lib/training/data/dealt_rows.hpp"
#include "lib/training/objectives/objective.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kHeader_bytes = 192;

/// The bytes before the numbers of a NumPy array of `count` float64, version 1.0.
/// \param hash  stands in a comment, which Python reads over; empty: none
std::string npy_header(std::size_t count, const std::string& hash) {
  auto text = fmt::format("{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}{}", count,
                          hash.empty() ? "" : "  # records " + hash);
  constexpr std::size_t kBefore = 10;
  text.resize(kHeader_bytes - kBefore - 1, ' ');
  const char size = static_cast<char>(kHeader_bytes - kBefore);
  return std::string("\x93NUMPY\x01\x00", 8) + size + '\0' + text + '\n';
}

/// The number of float64 in a NumPy array, and the bytes before them. \return nothing for another file
std::optional<std::pair<std::int64_t, std::uint64_t>> shape_of_npy(const File& file, std::string& header) {
  std::string start(std::min<std::uint64_t>(10, file.size_bytes()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(start)));
  if (start.size() < 10 || !start.starts_with("\x93NUMPY\x01")) return {};
  const auto bytes = static_cast<std::uint64_t>(static_cast<unsigned char>(start[8])) +
                     256 * static_cast<std::uint64_t>(static_cast<unsigned char>(start[9]));
  if (10 + bytes > file.size_bytes()) return {};
  header.resize(bytes);
  file.read_at(10, std::as_writable_bytes(std::span(header)));
  const auto shape = header.find("'shape': (");
  if (header.find("'descr': '<f8'") == header.npos || header.find("'fortran_order': False") == header.npos ||
      shape == header.npos)
    return {};
  std::int64_t count = -1;
  const auto* first = header.data() + shape + 10;
  const auto read = std::from_chars(first, header.data() + header.size(), count);
  if (read.ec != std::errc() || !std::string_view(read.ptr, 2).starts_with(",)")) return {};
  return std::pair(count, 10 + bytes);
}

}  // namespace

std::optional<std::vector<double>> sequence_log_probs(ModelRuntime& runtime, const TokenLoader& rows,
                                                      std::int64_t micro_batch_size,
                                                      const std::function<void(double done)>& progress,
                                                      const std::function<bool()>& stopped) {
  const auto& ranks = runtime.data_ranks();
  std::vector<double> log_probs(static_cast<std::size_t>(rows.num_references()));
  const auto per_round = micro_batch_size * ranks.size;
  for (std::int64_t first = 0; first < rows.num_rows(); first += per_round) {
    if (stopped && stopped()) return std::nullopt;
    const auto count = std::min(per_round, rows.num_rows() - first);
    const auto numbers = rows_of_rank(ranks, first, count);
    const auto records = records_in(rows, numbers);
    auto batch = rows.read(numbers);
    send_to(runtime.ops(), batch);
    const auto fill = [&](MicroBatch& sequences, std::int64_t first_number) {
      auto nats_S = sequence_nats(runtime, sequences);
      runtime.synchronize();
      if (records.empty()) return;
      nats_S = nats_S.cpu();
      for (std::size_t i = 0; i < records.size(); ++i)
        log_probs[static_cast<std::size_t>(first_number + records[i])] = -nats_S.const_data_ptr<double>()[i];
    };
    fill(batch, 0);
    if (batch.mismatched != nullptr) fill(*batch.mismatched, rows.num_records());
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

RecordsDigest digest_of(const TokenLoader& rows) {
  RecordsDigest digest;
  const auto& tokens = rows.tokens();
  std::uint64_t hash = splitmix64(static_cast<std::uint64_t>(rows.num_records()));
  const auto add = [&](std::uint64_t value) { hash = splitmix64(hash ^ value); };
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counts;
  for (std::int64_t record = 0; record < rows.num_records(); ++record) {
    const auto length = std::min(tokens.length(record), rows.longest_sequence() + 1);
    ids.resize(static_cast<std::size_t>(length));
    counts.resize(ids.size());
    tokens.read(record, ids);
    tokens.read_loss_mask(record, counts);
    add(static_cast<std::uint64_t>(length));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      add(2 * static_cast<std::uint64_t>(ids[i]) + counts[i]);
      digest.largest_id = std::max(digest.largest_id, ids[i]);
    }
  }
  digest.hash = fmt::format("{:016x}", hash);
  return digest;
}

void write_log_probs(const std::filesystem::path& file, std::span<const double> log_probs, const std::string& hash) {
  const auto bad = std::ranges::find_if(log_probs, [](double value) { return !std::isfinite(value); });
  if (bad != log_probs.end())
    throw RuntimeFailure(fmt::format("the log-probability of record {} is not finite: some weights may not be",
                                     bad - log_probs.begin()));
  auto bytes = npy_header(log_probs.size(), hash);
  const auto numbers = std::as_bytes(log_probs);
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size());
  replace_file(file, bytes);
}

std::vector<double> read_log_probs(const std::filesystem::path& file, std::int64_t records, const std::string& hash) {
  const auto handle = File::open_read(file);
  std::string header;
  const auto shape = shape_of_npy(handle, header);
  const auto count = static_cast<std::uint64_t>(records);
  const auto refuse = [&](const std::string& problem) {
    throw FormatError(
        fmt::format("{}: {}: compute the log-probabilities for these data and this length", file.string(), problem));
  };
  if (!shape) refuse("is no NumPy array of float64");
  if (shape->first != records || handle.size_bytes() != shape->second + count * sizeof(double))
    refuse(fmt::format("is no array of {} numbers, one for each text or answer and of judged answers two: it has {}",
                       records, shape->first));
  if (const auto noted = header.find("# records "); noted != header.npos && header.compare(noted + 10, 16, hash) != 0)
    refuse("was computed for other texts or answers, or for another length");
  std::vector<double> log_probs(count);
  handle.read_at(shape->second, std::as_writable_bytes(std::span(log_probs)));
  const auto bad = std::ranges::find_if(log_probs, [](double value) { return !std::isfinite(value); });
  if (bad != log_probs.end()) refuse(fmt::format("element {} is not finite", bad - log_probs.begin()));
  return log_probs;
}

}  // namespace fsdp
