#pragma once
// The data of a training run: one source of samples, or a mixture of several.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/token_files/mixture_order.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/data/data_sources.hpp"

namespace fsdp {

/// A source of training data.
struct TrainingSource {
  std::string name;  ///< unique among the sources
  std::string path;  ///< as the user named it
  TokenLoader rows;
  std::int64_t weight = 1;  ///< its share of the samples, see whole_weights(); 0: it rests
  double epochs = 1;        ///< passes over its rows after which it has ended
  SourcePlace place = {};   ///< at the first position of the order

  /// Samples after which it has ended, at least one.
  std::int64_t end() const;
};

/// Reads the samples of a run by their positions in the stream. With several sources a micro-batch holds rows of
/// different kinds and lengths: shorter ones are padded, and where some source is packed, each other row is one
/// document. Positions before the first one are read as if the run had begun with these sources: Child-Tuning measures
/// on the beginning of the data. read() is to be called by one thread at a time; places() may run beside it.
class TrainingData final : public DataLoader {
 public:
  /// \pre the places of all sources belong to order.first_position
  /// \throws RequestError when no source has a weight
  TrainingData(std::vector<TrainingSource> sources, const MixtureOrder::Options& order);
  ~TrainingData() override;
  TrainingData(TrainingData&& other) noexcept;
  TrainingData& operator=(TrainingData&& other) noexcept;

  const std::vector<TrainingSource>& sources() const { return sources_; }
  bool is_mixture() const { return sources_.size() > 1; }
  /// Names of the sources of a mixture; none for one source.
  std::vector<std::string> groups() const;
  MixEnd end() const { return options_.end; }
  /// Position in the stream at which the job begins.
  std::int64_t first_position() const { return options_.first_position; }
  /// Where each source stands when the samples before `position` have been given.
  std::vector<SourcePlace> places(std::int64_t position) const;
  /// An order of its own, for other positions than those that are read.
  MixtureOrder order() const;
  /// The rows of a source, to give them a reference. \pre nothing reads them
  TokenLoader& rows_of(std::size_t source) { return sources_[source].rows; }
  /// Leaves this object without sources.
  std::vector<TrainingSource> take_sources() { return std::move(sources_); }

  /// Samples of an epoch: of one source its rows. See MixtureOrder::num_samples().
  std::int64_t num_rows() const override { return num_rows_; }
  /// \param rows  positions in the stream
  MicroBatch read(const std::vector<std::int64_t>& rows,
                  const std::vector<std::uint64_t>& sample_keys = {}) const override;

  /// Finds, among the micro-batches that training reads one after the other on any rank, the one whose rows weigh most
  /// together. \return lengths of the documents in each of its rows
  /// \param places  in the order of the samples. \param rows  of a micro-batch
  std::vector<DocumentLengths> heaviest_micro_batch(const StepSlice& places, std::int64_t rows,
                                                    const std::function<double(const DocumentLengths&)>& weight) const;

  // These are about all sources together.

  /// True when rows hold several documents.
  bool is_packed() const;
  bool is_stream() const;
  bool has_documents() const;
  /// True when micro-batches have many lengths.
  bool has_many_lengths() const;
  /// Pairs of the longest row, padded.
  std::int64_t tokens_per_row() const;
  std::int64_t num_records() const;
  /// Ids, and those of them that are neither input nor target.
  std::int64_t num_ids() const;
  std::int64_t ids_left_out() const;
  /// Tokens that attention covers, in the mean over the samples.
  double attended_length() const;

 private:
  struct Orders;
  MixtureOrder& order_for(std::int64_t position) const;
  MicroBatch merge(const std::vector<MixtureSample>& samples) const;

  std::vector<TrainingSource> sources_;
  MixtureOrder::Options options_;
  std::unique_ptr<Orders> orders_;
  std::int64_t num_rows_ = 0;
};

/// Sets the weights of sources, and where each of them ends. Sources without weights and epochs get shares of their
/// sizes to the power of 1 / temperature: at 1 each gives what it has, above that they come closer to each other.
/// \param asked  of each source
/// \throws RequestError for a temperature beside weights or epochs; as whole_weights()
void weigh_sources(const std::vector<DataSource>& asked, double temperature, std::vector<TrainingSource>& sources);

}  // namespace fsdp
