#pragma once
// Micro-batches from token files.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/documents/split.hpp"
#include "lib/token_files/row_packing.hpp"
#include "lib/token_files/token_file.hpp"
#include "lib/training/data/document_layout.hpp"

namespace fsdp {

/// Limits for the length of a sequence, in tokens: neither is negative.
struct SequenceLimit {
  std::int64_t seq_len = 0;    ///< length asked for; 0: as long as model and data allow, documents up to 512 ids
  std::int64_t positions = 0;  ///< positions of the model

  /// Ids of a document, and inputs of a row of a stream, at the most.
  std::int64_t row_inputs() const;
};

/// Reads samples as micro-batches.
class DataLoader {
 public:
  virtual ~DataLoader() = default;
  virtual std::int64_t num_rows() const = 0;
  /// Reads a micro-batch on the host.
  /// \param rows         of a set of rows their numbers: n is row n mod num_rows() of epoch n / num_rows(); packed rows
  ///   hold other documents in each epoch. Of a run's data positions in its stream. Empty: a micro-batch without rows
  /// \param sample_keys  one per row for dropout; empty: no dropout
  virtual MicroBatch read(const std::vector<std::int64_t>& rows,
                          const std::vector<std::uint64_t>& sample_keys = {}) const = 0;

 protected:
  /// Makes ids and targets of batch.rows rows of batch.length tokens that are all padding.
  static void make_padding(MicroBatch& batch);
  /// \param sample_keys  one for each row of the batch, or for each group of rows that belong to one sample
  static void set_sample_keys(MicroBatch& batch, const std::vector<std::uint64_t>& sample_keys);
};

/// A token file's samples as inputs and targets.
///
/// Rows: a row of L ids gives n = min(seq_len, L - 1) pairs, inputs row[0:n], targets row[1:n+1].
/// Documents: the first seq_len ids of a document, each but the last with the next id as its target. A document that is
/// shorter than the longest one of its micro-batch is padded on the right; padding has no targets.
/// Packed documents: several documents in a row, one after the other, each as above. They are packed here, or share
/// rows in the file, which are then equal in every epoch.
/// Preferences: a row is both sides of one, the chosen first: two sequences, or when packed all sides of several, of
/// which each rejected one shares the tokens of the prompt.
/// Judged answers: a row is one; MicroBatch::desirable_S says of each whether it is wanted. In MicroBatch::mismatched
/// its prompt has the nearest answer before it in the data set that is to another prompt, from the beginning on to the
/// end; both are cut together as one document is.
/// Ids that the file's loss mask leaves out are inputs only.
class TokenLoader final : public DataLoader {
 public:
  static constexpr std::int64_t kDefaultDocumentIds = 512;

  /// \param most  reads only the first rows or documents; where documents share rows, the first rows. 0: all
  /// \param how   stream_inputs is chosen by the limit
  /// \throws RequestError when the limit is impossible; FormatError when the file has no samples
  TokenLoader(const std::filesystem::path& file, const SequenceLimit& limit, std::int64_t vocab_size,
              std::int64_t most = 0, TokenFileOptions how = {});

  /// Keeps a part of the rows of a stream: the last ones, split.share of them and at least one, or the others.
  /// \throws FormatError when there are no others
  void keep_part(const Split& split);
  /// Number of rows, documents or preferences; for packed documents the number of packed rows.
  std::int64_t num_rows() const override;
  /// Number of rows or documents of the file that are read.
  std::int64_t num_records() const;
  /// Packs documents into rows of as many tokens as a document may have ids. Rows that documents share in the file stay
  /// as they are.
  /// \param records  packs only the first ones of the file; 0: all
  /// \throws RequestError when the file holds rows
  void pack(const RowPacking::Order& order, std::int64_t records = 0);
  bool is_packed() const { return packing_.has_value() || has_shared_rows(); }
  /// True when rows are preferences.
  bool has_preferences() const { return sides_ == 2; }
  /// True when rows are judged answers.
  bool is_judged() const { return is_judged_; }
  /// Preferences or judged answers that are left out, since a side that is cut has no target.
  std::int64_t samples_left_out() const {
    return has_preferences() || is_judged() ? num_records() / sides_ - num_samples() : 0;
  }
  /// Log-probabilities by a reference that sequences need: of each document, then of each mismatched one.
  std::int64_t num_references() const { return num_records() * (is_judged_ ? 2 : 1); }
  /// False where all judged answers are to one prompt.
  bool has_mismatched() const { return !partners_.empty(); }
  /// Gives each sequence that is read the log-probability by a reference. \param log_probs  [num_references()]
  void set_reference(std::vector<double> log_probs) { reference_ = std::move(log_probs); }
  /// The rows or documents of the file that a row has, in the order of its sequences.
  std::vector<std::int64_t> records_of(std::int64_t row) const;
  /// The documents of a packed row that have pairs, in order.
  std::vector<std::int64_t> documents_of(std::int64_t row, std::int64_t epoch = 0) const;
  /// Tokens of the documents in a row, without padding, at least one. \param number  as read() takes it
  DocumentLengths lengths_in(std::int64_t number) const;
  const TokenFile& tokens() const { return *tokens_; }
  bool has_documents() const { return tokens_->has_documents(); }
  /// True for rows of a stream, of which each begins with the last id of the row before.
  bool is_stream() const { return overlaps_; }
  bool has_loss_mask() const { return tokens_->has_loss_mask(); }
  /// Pads documents to a multiple of `step` tokens, up to the positions of the model: attention on GPUs makes a plan
  /// for each new length.
  void pad_to(std::int64_t step) { step_ = step; }
  /// Pairs of a row; for documents, and sides of preferences, the most pairs of one, padded; for packed rows the most
  /// pairs of one, padded.
  std::int64_t tokens_per_row() const { return has_documents() ? padded(is_packed() ? row_tokens_ : pairs_) : pairs_; }
  /// Most tokens of a packed row, without padding for GPUs.
  std::int64_t row_tokens() const { return row_tokens_; }
  /// Pairs of the longest document that is read.
  std::int64_t longest_sequence() const { return pairs_; }
  /// Ids of the first `records` rows or documents; of all rows of a stream, also those of its end that are in none.
  std::int64_t num_ids(std::int64_t records) const;
  /// Ids of the first `records` records beyond the end of their sequence; they are neither input nor target. Of all
  /// rows of a stream also those of its end that are in none.
  std::int64_t ids_left_out(std::int64_t records) const;
  /// Tokens of prompts that packed preferences share, which are computed once for both sides.
  std::int64_t shared_tokens() const;
  /// Share of the tokens of packed rows that belong to documents; the rest is padding.
  double fill() const;
  /// Tokens that attention covers: the length of a row; for packed rows the mean length of a document, weighted by
  /// tokens.
  double attended_length() const;

  /// \throws FormatError when none of the first `records` rows or documents has a target: there would be no loss
  void require_targets(std::int64_t records) const;
  /// Counts documents, among the first `records` of a file with a `loss_mask`, that are cut before their first target:
  /// such documents train nothing. Reads the masks of cut documents.
  std::int64_t documents_without_targets(std::int64_t records) const;

  /// \throws FormatError naming file and row of an id outside the vocabulary
  MicroBatch read(const std::vector<std::int64_t>& rows,
                  const std::vector<std::uint64_t>& sample_keys = {}) const override;

 private:
  void fill_rows(const std::vector<std::int64_t>& rows, MicroBatch& batch) const;
  void fill_documents(const std::vector<std::int64_t>& rows, MicroBatch& batch) const;
  /// \return the documents, in order
  std::vector<std::int64_t> fill_packed(const std::vector<std::int64_t>& rows, MicroBatch& batch) const;
  /// Ids of a document that are read, and which of them count.
  struct DocumentIds {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> counts;
  };
  DocumentIds read_document(std::int64_t document) const;
  /// The number among the samples of a judged answer that is read.
  std::int64_t number_of(std::int64_t document) const;
  /// The prompt of a judged answer with that of another prompt.
  DocumentIds mismatched_ids(std::int64_t document) const;
  /// Writes the pairs of a document from the one numbered `begin` on. \param token  of the micro-batch, where they go
  static void put_document(const DocumentIds& document, std::int64_t begin, MicroBatch& batch, std::int64_t token);
  /// Makes rows of documents, padded to the longest one.
  void fill_padded(const std::vector<DocumentIds>& documents, MicroBatch& batch) const;
  /// Sets what judged answers have beside their ids.
  void add_judgements(const std::vector<std::int64_t>& documents, MicroBatch& batch) const;
  at::Tensor references_of(const std::vector<std::int64_t>& records, std::int64_t first) const;
  /// Ids of a record that are texts: a judgement is none.
  std::int64_t num_ids_of(std::int64_t record) const { return tokens_->length(record) - (is_judged_ ? 1 : 0); }
  /// Pairs of a row or document that are read.
  std::int64_t pairs_of(std::int64_t record) const;
  /// Pairs that are computed for it: all but those that it shares.
  std::int64_t own_pairs_of(std::int64_t record) const { return pairs_of(record) - shared_tokens_of(record); }
  /// Tokens that a rejected side shares with the chosen one: they have the same ids and predict nothing that counts.
  std::int64_t shared_tokens_of(std::int64_t record) const;
  void find_shared_tokens();
  /// \param counts  buffer for the loss mask
  bool has_target(std::int64_t record, std::vector<std::uint8_t>& counts) const;
  bool has_shared_rows() const { return tokens_->num_shared_rows() > 0; }
  void check_rows(const SequenceLimit& limit);
  void check_samples();
  /// Reads and checks judgements, and finds for each sample the one whose answer its prompt gets.
  void find_partners();
  /// Rows, documents, preferences or judged answers that are read.
  std::int64_t num_samples() const { return kept_.empty() ? num_records() / sides_ : std::ssize(kept_); }
  /// The number in the file of one of them.
  std::int64_t sample(std::int64_t number) const {
    return kept_.empty() ? number : kept_.at(static_cast<std::size_t>(number));
  }
  std::int64_t padded(std::int64_t length) const;

  std::unique_ptr<TokenFile> tokens_;
  std::optional<RowPacking> packing_;  ///< set when documents are packed here
  std::vector<double> reference_;      ///< see num_references(); empty: there is none
  std::vector<std::int64_t> kept_;     ///< preferences and judged answers that have targets; empty: all of them
  std::vector<std::int32_t> shared_;   ///< tokens that both sides of each preference share; empty: none
  std::int64_t sides_ = 1;             ///< documents of a sample: of preferences 2
  bool is_judged_ = false;
  std::vector<bool> wanted_;            ///< judgement of each sample
  std::vector<std::int64_t> partners_;  ///< of each sample the document whose answer its prompt gets, too
  std::int64_t most_;                   ///< rows, documents or preferences that are read
  std::int64_t pairs_ = 0;
  std::int64_t row_tokens_ = 0;  ///< most tokens of a packed row
  std::int64_t positions_ = 0, step_ = 1;
  std::int64_t vocab_size_ = 0;
  bool overlaps_ = false;
  std::int64_t end_left_out_ = 0;  ///< ids at the end of a stream that are in no row
};

/// Random ids, for runs that only measure.
class RandomLoader final : public DataLoader {
 public:
  /// `num_rows` rows of `pairs` inputs and targets.
  /// \param documents  lengths of the documents that share each row of a micro-batch; empty: a row is one sequence
  /// \param has_preferences  a row is a preference of two sequences, or if packed of several
  /// \param is_judged  rows are judged answers
  RandomLoader(std::int64_t num_rows, std::int64_t pairs, std::int64_t vocab_size,
               std::vector<DocumentLengths> documents = {}, bool has_preferences = false, bool is_judged = false)
      : num_rows_(num_rows),
        pairs_(pairs),
        vocab_size_(vocab_size),
        documents_(std::move(documents)),
        has_preferences_(has_preferences),
        is_judged_(is_judged) {}
  std::int64_t num_rows() const override { return num_rows_; }
  MicroBatch read(const std::vector<std::int64_t>& rows,
                  const std::vector<std::uint64_t>& sample_keys = {}) const override;

 private:
  std::int64_t num_rows_, pairs_, vocab_size_;
  std::vector<DocumentLengths> documents_;
  bool has_preferences_, is_judged_;
};

/// Chooses the tokens of the head (MicroBatch::head_tokens_M) where many have no targets, and sends ids, targets and
/// the layout of packed documents to the device; the host does not wait.
void send_to(const Ops& ops, MicroBatch& batch);

/// Documents are padded to a multiple of this length on GPUs.
inline constexpr std::int64_t kGpuLengthStep = 64;

/// Dropout key of the sample at a stream position; depends on nothing else than the arguments.
std::uint64_t sample_key(std::uint64_t seed, std::int64_t position);

}  // namespace fsdp
