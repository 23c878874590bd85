#pragma once
// Everything a training run can be told, with its defaults; apps/common/finetune_options.cpp turns words into it.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/messages/job_options.hpp"
#include "lib/checkpoints/transform/grow_vocabulary.hpp"
#include "lib/engine/collectives/requested_device.hpp"
#include "lib/engine/optim/lr_schedule.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/sharding_options.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/token_files/id_array.hpp"
#include "lib/token_files/mixture_order.hpp"
#include "lib/training/data/data_sources.hpp"
#include "lib/training/data/validation_sets.hpp"
#include "lib/training/objectives/objective_options.hpp"
#include "lib/training/step/step_interval.hpp"

namespace fsdp {

inline constexpr std::int64_t kFisherSamples = 1024;

struct ModelOptions {
  std::string model = "mingpt";  ///< mingpt, or the name of weights: a directory or ORG/NAME
  std::string directory;         ///< where those weights are: config.json and safetensors
  std::string tokenizer;         ///< gpt2 or a directory; empty: the model's
  std::int64_t num_layers = 12;
  std::int64_t num_heads = 12;
  std::int64_t embed_size = 768;
  std::int64_t ffn_hidden_size = 0;  ///< 0: 4 * embed_size
  std::int64_t vocab_size = 50257;
  std::string add_tokens;            ///< file of tokens that tokenizer and model get beside theirs; empty: none
  NewRows new_rows = NewRows::mean;  ///< how their rows of embedding and head start
  std::int64_t pad_vocabulary = 1;   ///< rows of embedding and head become a multiple of this number
  std::int64_t seq_len = 0;          ///< longest sequence; 0: the model's, 256 for a new one
  double dropout = 0.0;
  std::vector<std::string> given_sizes;  ///< which of the sizes above were given: "num-layers", "num-heads", ...
};

/// Games of chess that are played at validations.
struct ValidationGames {
  std::string data;              ///< file or directory; empty: none
  std::int64_t most = 0;         ///< the first ones of the data; 0: all
  std::int64_t positions = 200;  ///< at which legality is tried
};

/// Benchmarks that are asked at validations.
struct ValidationTasks {
  std::vector<std::string> names;           ///< tasks, groups, tags, files and folders; empty: none
  StepInterval every;                       ///< never: at each validation
  std::optional<double> limit;              ///< most rows of each task; below 1: their share
  std::optional<std::int64_t> num_fewshot;  ///< in place of the task's
  bool chat = false;                        ///< questions are conversations
};

/// Decisions that validations make, and outputs of each validation.
struct ValidationOptions {
  ValidationGames games;
  ValidationTasks tasks;
  std::string keep_best;      ///< checkpoints/best by "loss" of the first set, or of the one named, by a metric of the
                              ///< games, "chess_legal", or of the tasks, "hellaswag.acc"; "", "none": none
  std::int64_t patience = 0;  ///< validations in a row without improvement that end the run; 0: none do
  double min_delta = 0;       ///< of an improvement, in the unit of what decides
  std::vector<std::string> sample_prompts;  ///< that are continued
  bool sample_chat = false;                 ///< they are messages of a user, in the chat template
  std::int64_t sample_tokens = 64;          ///< at the most
  bool ends_with_best = false;              ///< what is written at the end is of checkpoints/best
  /// Losses of earlier runs of a sweep, by step. Where a step has two or more, a run ends at its validation there if
  /// its own loss is above their median.
  std::map<std::int64_t, std::vector<double>> losses_to_beat;

  bool keeps_best() const { return !keep_best.empty() && keep_best != "none"; }
};

struct RuntimeOptions : JobOptions {
  RequestedDevice device = RequestedDevice::automatic;
  std::string trace_file;
};

struct TrainOptions {
  std::map<std::string, std::string> of_job;    ///< given, and not taken over by a restart: by long name, as text
  std::vector<std::string> left_behind;         ///< of_job of the checkpoint's run that this job was not given
  std::vector<std::string> repeated;            ///< of_job, and how it prints, as words for a shell
  std::string program = "fsdp-finetune";        ///< as it was started: a name on PATH, or a path
  std::map<std::string, std::string> as_given;  ///< every option by long name, as text, defaults too: for the record

  ModelOptions model;
  ShardingOptions sharding;
  RuntimeOptions runtime;

  ObjectiveOptions objective;
  std::string train_data, val_data;      ///< token files, or texts that are encoded first; "" none
  std::vector<DataSource> sources;       ///< what train_data names: files and directories
  MixEnd mix_end = MixEnd::repeat;       ///< of several sources
  double mix_temperature = 1;            ///< of sources without weights
  std::string samples_file;              ///< receives the first samples of a dry run; empty: none
  std::int64_t num_samples = 1000;       ///< of samples_file
  std::vector<ValidationSet> val_sets;   ///< what val_data names: files and directories
  double val_split = 0;                  ///< share of train_data that is held out for validation; 0: none
  bool allow_other_tokenizer = false;    ///< train on token files whose notes name another tokenizer
  std::optional<NumberType> token_type;  ///< of token files that are ids and nothing else
  std::string data_field;                ///< key or column of the texts; empty: the usual one
  ConversationOptions conversations;     ///< how conversations and completions among the data are read
  std::int64_t max_rows = 0;             ///< texts of the training data; 0: all
  double max_epochs = 1;                 ///< negative: evaluate only
  std::int64_t max_steps = 0;            ///< wins over max_epochs when > 0
  std::int64_t batch_size = 4;           ///< sequences per rank and micro-batch
  std::int64_t total_batch_size = 0;     ///< sequences per optimizer step over all ranks; 0: batch_size * ranks
  bool total_batch_restored = false;     ///< total_batch_size comes from a checkpoint: ranks may get unequal shares
  int gradient_accumulation_steps = 0;   ///< instead of total_batch_size; 0: derived
  LrSchedule schedule;                   ///< total_steps 0: the run's
  double warmup_ratio = 0;               ///< of the schedule's steps, where schedule.warmup_steps is 0
  double min_lr = 0;                     ///< instead of schedule.min_ratio; 0: as that says
  OptimizerOptions optimizer{.beta2 = 0.95, .weight_decay = 0.1};
  std::string adapter;  ///< directory of an adapter, as peft writes it, to go on from; empty: none
  std::int64_t fisher_samples = kFisherSamples;  ///< of task_driven; 0: all rows
  bool decay_all = false;
  double clip_grad_norm = 1.0;  ///< 0: off
  std::uint64_t seed = 1337;
  bool no_shuffle = false;  ///< rows in file order
  bool pack = false;        ///< several documents in each row
  bool stream = false;      ///< texts are joined and cut into rows
  bool documents = false;   ///< each text is a sample, also where most of it is cut; neither: by the kind of file

  bool no_tensorboard = false;  ///< no event file beside metrics.jsonl

  std::string run_name;  ///< empty: the model's name
  std::string out_dir = "runs";
  std::string restart_checkpoint;  ///< a checkpoint directory or file, a link, or "latest"; empty: from the start
  std::optional<std::int64_t> restart_epoch;  ///< finished epochs of a foreign checkpoint; none: as it says
  StepInterval save_every;                    ///< never: at the end only
  double save_interval_minutes = 30;          ///< 0: never by time
  bool interval_saves_pass = false;           ///< the checkpoints of save_interval_minutes go when a newer one is there
  int keep_last = 0;                          ///< checkpoints kept; 0: all
  int keep_optimizer = 0;                     ///< newest ones that keep the optimizer's state; 0: all
  std::int64_t max_nonfinite_steps = 10;      ///< in a row, after which a run ends
  double takeover_after_seconds = 90;         ///< silence of another job in the run's folder
  bool no_final_save = false;
  std::string save_final_full;     ///< .pt or .safetensors file to write at the end of the run; empty: none
  std::string save_final_hf;       ///< directory in Hugging Face's layout to write at the end; empty: none
  std::string save_final_adapter;  ///< directory as peft writes it; empty: none but the run's own
  bool overwrite = false;          ///< these outputs may replace those of other runs
  StepInterval eval_every;         ///< never: at the end only
  ValidationOptions validation;
  std::int64_t log_every = 10;
  std::string exclude_file;             ///< receives the nodes that the next job is to leave out; empty: none
  std::int64_t verify_every = 0;        ///< steps between comparisons of the ranks' state; 0: none
  std::int64_t sniff_every = 0;         ///< steps between tests of the nodes; 0: none
  double straggler_every_seconds = 10;  ///< between comparisons of the ranks' pace; 0: none
  double time_limit_seconds = 0;        ///< from the start of the program; 0: the scheduler's, where it tells
  bool dry_run = false;

  std::string prompt;  ///< generated from after training or evaluation
  std::int64_t num_tokens = 50;
};

}  // namespace fsdp
