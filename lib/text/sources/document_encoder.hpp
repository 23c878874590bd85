#pragma once
// One sample of any form to token ids, with a mask where not all of them count.
#include <cstdint>
#include <string>

#include "lib/text/chat/conversation_encoder.hpp"
#include "lib/text/sources/data_form.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

struct EncodeOptions {
  TrainOn train_on = TrainOn::answers;
  std::string messages_field = "messages";
  std::int64_t max_length = 0;  ///< ids of a sample; 0: all
};

struct EncodedSample {
  MaskedIds masked;      ///< the mask is empty where everything counts
  bool counts = true;    ///< some id of it is a target; if not, the sample is to be left out
  std::int64_t cut = 0;  ///< ids beyond max_length
};

class DocumentEncoder {
 public:
  /// The tokenizer must outlive it. \throws as ConversationEncoder
  DocumentEncoder(const Tokenizer& tokenizer, ConversationRules rules, EncodeOptions options);

  /// \param sample  a text, or a JSON object for the other forms
  /// \param stop    asked now and then in a long text
  /// \throws FormatError saying what is wrong with it; EncodingStopped
  EncodedSample encode(const std::string& sample, DataForm form, const StopTest& stop = {}) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  MaskedIds encode_record(const std::string& sample, DataForm form) const;

  const Tokenizer& tokenizer_;
  ConversationEncoder conversations_;
  EncodeOptions options_;
};

}  // namespace fsdp
