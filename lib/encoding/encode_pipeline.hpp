#pragma once
// Encodes documents: one thread reads, several encode, results come in the order of the documents.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/messages/ignored.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/split.hpp"
#include "lib/templates/chat/conversation_encoder.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

// Encodes one sample of any form to token ids, with a mask when not all ids count.

struct EncodeOptions {
  TrainOn train_on = TrainOn::answers;
  std::string messages_field = "messages";
  std::int64_t max_length = 0;  ///< ids of a sample; 0: all
  Split split = {};
  std::string text_field = "text";  ///< of labelled texts
  // As ConversationOptions has them.
  std::int64_t max_prompt_length = 0;
  Truncation truncation = Truncation::keep_start;
  HeadKind head = HeadKind::next_token;
  std::vector<std::string> labels = {};
  std::int64_t padding_id = -1;
  bool judged = false;
};

struct EncodedSample {
  MaskedIds masked;                   ///< the mask is empty when all ids count
  std::optional<MaskedIds> rejected;  ///< of a preference, whose chosen side `masked` is
  bool elsewhere = false;             ///< the sample is in the other part of a split, and not encoded
  bool counts = true;                 ///< some id is a target; samples without a target are to be left out
  std::int64_t cut = 0;               ///< ids beyond max_length
  std::int32_t label = 0;             ///< of a text with a label, or of a judged answer
  std::vector<std::string> unread;    ///< keys of a record that nothing reads
};

class DocumentEncoder {
 public:
  /// \param tokenizer  must outlive this object
  /// \throws as ConversationEncoder
  DocumentEncoder(const Tokenizer& tokenizer, ConversationRules rules, EncodeOptions options);

  /// \param sample  a text, or a JSON object for the other forms
  /// \param stop    polled in long texts
  /// \throws FormatError naming the problem; EncodingStopped
  EncodedSample encode(const std::string& sample, DataForm form, const StopTest& stop = {}) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }
  /// As ConversationEncoder has it.
  bool learns_turn_ends() const { return conversations_.learns_turn_ends(); }

 private:
  void encode_record(const std::string& sample, DataForm form, EncodedSample& out) const;
  void encode_labelled(const nlohmann::ordered_json& record, EncodedSample& out) const;
  void cut(MaskedIds& masked, EncodedSample& out) const;
  void set_target(MaskedIds& masked, std::int32_t target) const;

  const Tokenizer& tokenizer_;
  ConversationEncoder conversations_;
  EncodeOptions options_;
};

namespace detail {

/// Consecutive documents, encoded.
struct EncodedBatch {
  std::vector<std::int32_t> ids;    ///< of all of them
  std::vector<std::uint8_t> mask;   ///< loss mask of all documents: 1 where an id counts
  std::vector<std::size_t> ends;    ///< end of the ids of each document; a preference has two
  std::vector<std::string> places;  ///< of each document
  std::int64_t skipped = 0;         ///< samples without a target, which are left out
  std::string first_skipped;        ///< place of the first skipped sample
  std::int64_t elsewhere = 0;       ///< samples in the other part of a split
  std::int64_t cut = 0;             ///< samples that were too long
  std::int64_t equal = 0;           ///< preferences whose sides are equal
  std::int64_t bytes_read = 0;      ///< bytes of the stream up to these documents
  Ignored ignored;                  ///< keys of records that nothing reads, by file
};

/// Between reading and next() the number of batches and their bytes are bounded; one document of any size is accepted.
class EncodePipeline {
 public:
  /// Starts the threads. Stream and encoder must outlive this object.
  /// \param threads  number of threads that encode, 1 or more
  EncodePipeline(DocumentStream& stream, const DocumentEncoder& encoder, int threads);
  EncodePipeline(const EncodePipeline&) = delete;
  EncodePipeline& operator=(const EncodePipeline&) = delete;
  /// Ends the threads, without finishing the texts in progress.
  ~EncodePipeline();

  enum class State { ready, waiting, finished };
  /// Returns the next batch in order, if it is ready within `patience`.
  /// \throws errors of reading and encoding in the order of the documents: the first bad document is reported, whatever
  ///   the number of threads
  State next(EncodedBatch& batch, std::chrono::milliseconds patience);

 private:
  struct Batch {
    std::int64_t number = 0;
    std::vector<std::string> texts;
    std::vector<std::string> places;
    std::vector<DataForm> forms;
    std::size_t text_bytes = 0;
    EncodedBatch encoded;
    std::exception_ptr error;
  };

  void read();
  bool fill(Batch& batch);
  bool submit(std::unique_ptr<Batch> batch);
  void encode();
  void encode(Batch& batch) const;
  void add_document(MaskedIds masked, const std::string& place, EncodedBatch& encoded) const;
  void close();

  DocumentStream& stream_;
  const DocumentEncoder& encoder_;
  bool begins_inside_;  ///< places are not those of the file's first sample
  std::size_t most_batches_;

  std::mutex mutex_;
  std::condition_variable room_, work_, result_;
  std::atomic<bool> closing_ = false;  ///< also polled while a text is encoded
  bool read_all_ = false;
  std::size_t batches_in_flight_ = 0;
  std::size_t bytes_in_flight_ = 0;
  std::int64_t num_batches_ = 0;  ///< submitted
  std::int64_t next_batch_ = 0;   ///< next batch that next() returns
  std::deque<std::unique_ptr<Batch>> queue_;
  std::map<std::int64_t, std::unique_ptr<Batch>> done_;
  std::vector<std::thread> threads_;  ///< last member: the threads use the others
};

/// Encodes a stream to its end.
/// \param take   gets each batch in order
/// \param stops  polled, also where no batch is ready. \return false when it returned true
/// \throws as EncodePipeline::next(), and what `take` throws
bool encode_all(DocumentStream& stream, const DocumentEncoder& encoder, int threads,
                const std::function<void(const EncodedBatch&)>& take, const std::function<bool()>& stops);

}  // namespace detail

}  // namespace fsdp
