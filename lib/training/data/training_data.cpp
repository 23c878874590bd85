#include "lib/training/data/training_data.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

std::vector<MixtureSource> mixture_sources(const std::vector<TrainingSource>& sources) {
  std::vector<MixtureSource> of_order;
  for (const auto& source : sources)
    of_order.push_back({source.rows.num_rows(), source.weight, source.end(), source.place});
  return of_order;
}

/// A micro-batch of the rows that one source has in a merged one, and their places there.
struct Part {
  std::vector<std::int64_t> numbers, places;
  MicroBatch batch;
};

}  // namespace

/// An order for those who read samples, and one for those who ask for places: each goes on from where it was.
struct TrainingData::Orders {
  std::mutex mutex_of_reading, mutex_of_places;
  MixtureOrder reading, places;
  std::unique_ptr<MixtureOrder> beginning = nullptr;  ///< of positions before the first one
};

std::int64_t TrainingSource::end() const {
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(rows.num_rows()) * epochs));
}

TrainingData::TrainingData(std::vector<TrainingSource> sources, const MixtureOrder::Options& order)
    : sources_(std::move(sources)),
      options_(order),
      orders_(
          new Orders{.mutex_of_reading = {}, .mutex_of_places = {}, .reading = this->order(), .places = this->order()}),
      num_rows_(orders_->reading.num_samples()) {}

TrainingData::~TrainingData() = default;
TrainingData::TrainingData(TrainingData&& other) noexcept = default;
TrainingData& TrainingData::operator=(TrainingData&& other) noexcept = default;

std::vector<SourcePlace> TrainingData::places(std::int64_t position) const {
  const std::lock_guard lock(orders_->mutex_of_places);
  return orders_->places.places(position);
}

MixtureOrder TrainingData::order() const { return {mixture_sources(sources_), options_}; }

std::vector<std::string> TrainingData::groups() const {
  std::vector<std::string> names;
  for (const auto& source : sources_) names.push_back(source.name);
  return is_mixture() ? names : std::vector<std::string>();
}

MixtureOrder& TrainingData::order_for(std::int64_t position) const {
  if (position >= options_.first_position) return orders_->reading;
  if (orders_->beginning == nullptr) {
    auto sources = mixture_sources(sources_);
    for (auto& source : sources) source.place = {};
    auto options = options_;
    options.first_position = 0;
    orders_->beginning = std::make_unique<MixtureOrder>(std::move(sources), options);
  }
  return *orders_->beginning;
}

MicroBatch TrainingData::read(const std::vector<std::int64_t>& rows,
                              const std::vector<std::uint64_t>& sample_keys) const {
  std::vector<MixtureSample> samples;
  {
    const std::lock_guard lock(orders_->mutex_of_reading);
    for (const auto position : rows) samples.push_back(order_for(position).at(position));
  }
  if (is_mixture()) {
    auto batch = merge(samples);
    set_sample_keys(batch, sample_keys);
    return batch;
  }
  std::vector<std::int64_t> numbers;
  for (const auto& sample : samples) numbers.push_back(sample.row.number);
  return sources_.front().rows.read(numbers, sample_keys);
}

MicroBatch TrainingData::merge(const std::vector<MixtureSample>& samples) const {
  std::vector<Part> parts(sources_.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    parts[samples[i].source].numbers.push_back(samples[i].row.number);
    parts[samples[i].source].places.push_back(static_cast<std::int64_t>(i));
  }
  MicroBatch batch;
  batch.rows = std::ssize(samples);
  batch.length = 1;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    if (parts[s].numbers.empty()) continue;
    parts[s].batch = sources_[s].rows.read(parts[s].numbers);
    batch.length = std::max(batch.length, parts[s].batch.length);
  }
  make_padding(batch);
  batch.groups_N = at::empty({batch.rows * batch.length}, at::kInt);
  std::vector<DocumentLengths> documents(samples.size());
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const auto& part = parts[s];
    batch.num_targets += part.batch.num_targets;
    for (std::size_t r = 0; r < part.numbers.size(); ++r) {
      const auto to = part.places[r] * batch.length, from = static_cast<std::int64_t>(r) * part.batch.length;
      std::copy_n(part.batch.ids_N.data_ptr<std::int32_t>() + from, part.batch.length,
                  batch.ids_N.data_ptr<std::int32_t>() + to);
      std::copy_n(part.batch.targets_N.data_ptr<std::int32_t>() + from, part.batch.length,
                  batch.targets_N.data_ptr<std::int32_t>() + to);
      std::fill_n(batch.groups_N.data_ptr<std::int32_t>() + to, batch.length, static_cast<std::int32_t>(s));
      element(documents, part.places[r]) = sources_[s].rows.lengths_in(part.numbers[r]);
    }
  }
  if (is_packed() && batch.rows > 0) batch.packing = make_packing(documents, batch.length);
  return batch;
}

std::vector<DocumentLengths> TrainingData::heaviest_micro_batch(
    const StepSlice& places, std::int64_t rows, const std::function<double(const DocumentLengths&)>& weight) const {
  auto order = this->order();
  std::vector<DocumentLengths> heaviest;
  double most = -1;
  for (std::int64_t at = 0; at < places.num_samples; at += rows) {
    std::vector<DocumentLengths> batch;
    double weighs = 0;
    for (std::int64_t i = at; i < std::min(at + rows, places.num_samples); ++i) {
      const auto sample = order.at(places.first_position + i);
      batch.push_back(sources_[sample.source].rows.lengths_in(sample.row.number));
      weighs += weight(batch.back());
    }
    if (weighs <= most) continue;
    most = weighs;
    heaviest = std::move(batch);
  }
  return heaviest;
}

bool TrainingData::is_packed() const {
  return std::ranges::any_of(sources_, [](const auto& source) { return source.rows.is_packed(); });
}

bool TrainingData::is_stream() const {
  return std::ranges::all_of(sources_, [](const auto& source) { return source.rows.is_stream(); });
}

bool TrainingData::has_documents() const {
  return std::ranges::any_of(sources_, [](const auto& source) { return source.rows.has_documents(); });
}

bool TrainingData::has_many_lengths() const {
  return std::ranges::any_of(sources_, [this](const auto& source) {
    const auto& rows = source.rows;
    return (rows.has_documents() && !rows.is_packed()) || rows.tokens_per_row() != tokens_per_row();
  });
}

std::int64_t TrainingData::tokens_per_row() const {
  std::int64_t most = 0;
  for (const auto& source : sources_) most = std::max(most, source.rows.tokens_per_row());
  return most;
}

std::int64_t TrainingData::num_records() const {
  std::int64_t records = 0;
  for (const auto& source : sources_) records += source.rows.num_records();
  return records;
}

std::int64_t TrainingData::num_ids() const {
  std::int64_t ids = 0;
  for (const auto& source : sources_) ids += source.rows.num_ids(source.rows.num_records());
  return ids;
}

std::int64_t TrainingData::ids_left_out() const {
  std::int64_t ids = 0;
  for (const auto& source : sources_) ids += source.rows.ids_left_out(source.rows.num_records());
  return ids;
}

double TrainingData::attended_length() const {
  double sum = 0, weights = 0;
  for (const auto& source : sources_) {
    const auto weight = static_cast<double>(source.weight);
    sum += weight * source.rows.attended_length();
    weights += weight;
  }
  return sum / weights;
}

void weigh_sources(const std::vector<DataSource>& asked, double temperature, std::vector<TrainingSource>& sources) {
  std::vector<double> weights;
  bool by_size = true;
  std::int64_t largest = 1;
  for (const auto& source : sources) largest = std::max(largest, source.rows.num_rows());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto size = static_cast<double>(sources[i].rows.num_rows());
    by_size = by_size && !asked[i].epochs && !asked[i].weight;
    sources[i].epochs = asked[i].epochs.value_or(1);
    weights.push_back(asked[i].weight    ? *asked[i].weight
                      : asked[i].epochs  ? size * *asked[i].epochs
                      : temperature == 1 ? size
                                         : std::pow(size / static_cast<double>(largest), 1 / temperature));
  }
  for (std::size_t i = 0; by_size && i < sources.size(); ++i) {
    if (weights[i] == 0)
      throw RequestError(
          fmt::format("a temperature of {} leaves {} no share: give a larger one", temperature, sources[i].name));
  }
  if (!by_size && temperature != 1)
    throw RequestError("a temperature makes shares of the sizes of sources, and the sources have weights or epochs");
  const auto whole = whole_weights(weights);
  for (std::size_t i = 0; i < sources.size(); ++i) sources[i].weight = whole[i];
}

}  // namespace fsdp
