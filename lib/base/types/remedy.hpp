#pragma once
// The remedies of advices. Programs have a sentence for each (apps/common/remedies.cpp).
#include "lib/base/types/advice.hpp"

namespace fsdp {

enum class Remedy : int {
  none,
  // --- what a conversion writes
  overwrite,
  exclude,            ///< subject: the name
  exclude_list,       ///< subject: a pattern of the list's names
  exclude_name,       ///< leave the named tensor out
  exclude_one,        ///< a tied head that differs from its embedding
  rename,             ///< of a name that the format cannot hold
  rename_or_exclude,  ///< of a name whose place is taken
  include,            ///< subject: a pattern of one model's names
  model_only,
  model_only_or_exclude,
  chosen_tensors,  ///< the choice of tensors and names was the user's
  // --- types of elements
  dequantize,
  no_dequantize,
  no_quantize,
  quantize_anew,
  dtype_or_exclude,  ///< a value that the type cannot hold
  one_dtype,         ///< tensors of several types that are to share one
  merge_in_dtype,
  numbers_of_gguf,
  safetensors_for_type,
  // --- what an input lacks
  model_config,
  config_json,  ///< config.json, or a folder with it
  config_from_tokenizer,
  config_from_new_tokens,
  param_shapes,
  shapes,       ///< of flat parameters
  tie,          ///< subject: the parameter
  list_or_tie,  ///< subject: the parameter
  adapter_beside_base,
  // --- names of other programs
  names_of_meta,
  names_of_gguf,
  transposed,
  map_to_gpt2,
  map_none_keeps,
  megatron_names,
  megatron_heads,
  // --- what was asked for
  list_tasks,
  fetch_tasks,  ///< a data set that benchmarks read is not there
  of_option,    ///< subject: its name, where a quantity of the library has the name of an option
  of_include,
  of_exclude,
  of_patterns,
  of_selection,
  of_rename,
  of_tie,
  of_dtype,
  of_quantize,
  of_config_from,
  of_optim_files,
  // --- what to do first
  check,          ///< tensors whose elements are not finite
  merge_first,    ///< subject: the adapter
  merge_run,      ///< subject: the checkpoint
  model_of_gguf,  ///< subject: the file
  // --- devices and steps
  of_device_cuda,
  device_meant,
  one_kind_of_device,
  rank_per_gpu,
  of_tf32,
  of_cuda_graphs,
  graphs_of_one_rank,
  graphs_or_activations,
  graphs_or_cpu_offload,
  graphs_or_offloaded_states,
  of_compute_dtype,
  fp8_gpu,
  set_shard_group_size,
  of_shard_group_size,
  // --- offloading
  disk_for_parameters,
  parameters_or_sharding,
  larger_disk,
  disk_of_each_node,
  restart_from_latest,
  // --- models and adapters
  of_freeze,
  of_train_only,
  of_frozen,
  of_dropout,
  of_widths,
  of_weight_tying,
  of_new_tokens,
  model_and_adapter,
  folder_of_gguf,
  checkpoint_as_model,
  // --- predictions
  of_rates,
  of_calibration,
  of_collectives,
  smaller_model,
  smaller_batch,
  // --- steps and rows
  other_batch,
  of_accumulation,
  of_decay,
  smaller_batch_size,
  of_seq_len,
  pack_again,
  packed_already,
  smaller_split,
  of_left_out_ids,
  // --- texts
  give_tokenizer,
  other_tokenizer,
  stream_passed_over,
  train_on_passed_over,
  template_passed_over,
  of_chat_template,
  other_template,
  name_template,
  forgot_model,
  mark_answers,
  of_eos,
  of_form,
  data_field,
  stream_or_documents,
  one_kind_of_files,
  results_anew,
  // --- runs
  another_run_name,
  of_out_dir,
  of_watch,
  name_pre_tokenizer,
  plain_marks,
  of_run_name,
  name_below,
  other_run_name,
  of_run_folder,
  restart_from_weights,
  convert_one,
  newer_checkpoint,
  name_config,
  leave_size_out,
  give_size,
  give_num_heads,
  model_for_adapters,
  name_base,
  folder_of_runs,
  one_of_runs,
  go_on_from,
  // --- downloads
  of_revision,
  all_formats,
  other_cache,
  name_cache,
  type_dataset,
  fewer_jobs,
  last = fewer_jobs,
};

}  // namespace fsdp
