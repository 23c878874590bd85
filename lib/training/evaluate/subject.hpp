#pragma once
// A checkpoint to be evaluated: its model, its tokenizer, its weights.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/messages/ignored.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"
#include "lib/training/state/checkpoint.hpp"

namespace fsdp {

struct EvaluationSubject {
  std::filesystem::path path;
  ModelConfig config;                            ///< without dropout
  std::shared_ptr<const Checkpoint> checkpoint;  ///< null: a directory with config.json and safetensors
  LoraConfig lora;                               ///< of adapters
  QuantizeConfig quantize;                       ///< of the weights they are for, or of these alone
  std::filesystem::path adapter;                 ///< where they are as peft writes them; empty: in the checkpoint
  std::vector<std::string> remarks;              ///< what the user should know about what was opened
  Ignored ignored;                               ///< what has no influence, known when it is loaded
  BaseWeights base;                              ///< what adapters in a checkpoint are for
  std::string tokenizer_name;                    ///< "gpt2" or a directory; empty: none is known
  std::string chat_template;                     ///< text of that with which it was trained; empty: not known
  std::string tokenizer_remark;                  ///< why none is, where there is something to say
  std::shared_ptr<const Tokenizer> tokenizer;    ///< null until open_subject_tokenizer()
};

/// Reads what the checkpoint says, no weights.
/// \param model_config  config.json or its directory; empty: the checkpoint says what it needs
/// \param tokenizer     "gpt2" or a directory; empty: tokenizer_of() it, else GPT-2's for minGPT
/// \throws FormatError; MissingInput; RequestError
EvaluationSubject open_subject(const std::filesystem::path& path, const std::string& model_config,
                               const std::string& tokenizer);

/// The model with an adapter as peft writes it, and with the adapter's tokenizer where it has one.
/// \param tokenizer  as for open_subject(). \throws FormatError; RequestError for a checkpoint that has its own
void add_adapter(EvaluationSubject& subject, const std::filesystem::path& adapter, const std::string& tokenizer);

/// \param what  needs it, for the message: "--prompt"
/// \throws RequestError when none is known; FormatError when it has more ids than the model
void open_subject_tokenizer(EvaluationSubject& subject, const std::string& what);

/// Fills a runtime of subject.config, each rank reading only its rows, and subject.ignored; then lets the checkpoint
/// go. Collective, once.
void load_subject(ModelRuntime& runtime, EvaluationSubject& subject);

}  // namespace fsdp
