#include "apps/common/remedies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lib/base/types/remedy.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kConvert = "fsdp-ckpt-convert", kDownload = "fsdp-download", kFinetune = "fsdp-finetune",
                           kEval = "fsdp-eval", kMemprobe = "fsdp-memprobe", kTraining = "fsdp-finetune fsdp-memprobe",
                           kTexts = "fsdp-finetune fsdp-eval", kAllTexts = "fsdp-finetune fsdp-eval fsdp-download",
                           kSequences = "fsdp-finetune fsdp-memprobe fsdp-eval";

constexpr auto kRows = std::to_array<RemedyRow>({
    {Remedy::list_tasks, "fsdp-eval fsdp-finetune fsdp-download",
     "; fsdp-eval --tasks list prints those that are there"},
    {Remedy::fetch_tasks, "fsdp-eval fsdp-finetune", "; fsdp-download --tasks fetches what tasks need"},
    {Remedy::of_option, kSequences, " (--{})"},
    {Remedy::overwrite, "fsdp-ckpt-convert fsdp-finetune", "; choose another name or add --overwrite"},
    {Remedy::exclude, kConvert, "; leave it out with --exclude '{}'"},
    {Remedy::exclude_list, kConvert, "; leave the whole list out with --exclude '{}', or write another format"},
    {Remedy::exclude_name, kConvert, "; --exclude leaves it out"},
    {Remedy::exclude_one, kConvert, "; set tie_word_embeddings to false there, or leave one out with --exclude"},
    {Remedy::rename, kConvert, "; give it another with --rename"},
    {Remedy::rename_or_exclude, kConvert, "; rename it with --rename or leave it out with --exclude"},
    {Remedy::include, kConvert, ": choose one with --include '{}'"},
    {Remedy::model_only, kConvert, "; convert with --model-only"},
    {Remedy::model_only_or_exclude, kConvert, ". Leave it out: --model-only, or --exclude with its name"},
    {Remedy::chosen_tensors, kConvert, " (--include, --exclude, --rename or --map chose so)"},
    {Remedy::dequantize, kConvert, ": give --dequantize"},
    {Remedy::no_dequantize, kConvert, ": leave --dequantize out"},
    {Remedy::no_quantize, kConvert, ": leave --quantize out"},
    {Remedy::quantize_anew, kConvert, ": give --dequantize with --quantize to make it anew"},
    {Remedy::dtype_or_exclude, kConvert, " (--dtype), or leave the tensor out with --exclude"},
    {Remedy::one_dtype, kConvert, ": --dtype makes one of them"},
    {Remedy::merge_in_dtype, kConvert, ": say what the merged model is to be kept in, as --dtype bfloat16"},
    {Remedy::numbers_of_gguf, kConvert, ": --to hf makes numbers of it, or leave it out with --exclude"},
    {Remedy::safetensors_for_type, kConvert, ": convert to safetensors or hf, or leave it out with --exclude"},
    {Remedy::model_config, kConvert, ": give --model-config with the config.json of the model"},
    {Remedy::config_json, kConvert, ": give --config-from DIR or --model-config FILE"},
    {Remedy::config_from_tokenizer, kConvert, " (--config-from DIR names a directory with one)"},
    {Remedy::config_from_new_tokens, kConvert, "; give --config-from DIR with the one that does"},
    {Remedy::param_shapes, kConvert, "; give a .pt or --param-shapes"},
    {Remedy::shapes, kConvert,
     ": give --model-config DIR (or its config.json) of the model, --reference FULL.pt (or a safetensors file) of the "
     "same model, or --param-shapes FILE.json"},
    {Remedy::tie, kConvert, ": say which parameter it shares with --tie {}=OTHER"},
    {Remedy::list_or_tie, kConvert, ": add it there or, if it shares another one's storage, give --tie {}=OTHER"},
    {Remedy::adapter_beside_base, kConvert,
     " (fsdp-finetune and fsdp-eval --adapter, fsdp-ckpt-convert --merge-adapter)"},
    {Remedy::names_of_meta, kConvert,
     ": it has one of Meta's names, of which fsdp-ckpt-convert --map llama-to-hf makes transformers'"},
    {Remedy::names_of_gguf, kConvert,
     ": it has one of llama.cpp's names: make a model of the GGUF file with fsdp-ckpt-convert FILE.gguf DIR --to hf"},
    {Remedy::transposed, kConvert,
     ": name its directory with the config.json, or make a minGPT of it (fsdp-ckpt-convert --map gpt2-to-mingpt)"},
    {Remedy::map_to_gpt2, kConvert, ": give --map mingpt-to-gpt2"},
    {Remedy::map_none_keeps, kConvert, " (--map mingpt-to-gpt2; --map none keeps them)"},
    {Remedy::megatron_names, kConvert, " (--map none keeps Megatron's names and layout)"},
    {Remedy::megatron_heads, kConvert,
     ": give --model-config with a config.json of the model (num_attention_heads is enough); --map none keeps "
     "Megatron's names"},
    {Remedy::of_include, kConvert, " (--include)"},
    {Remedy::of_exclude, kConvert, " (--exclude)"},
    {Remedy::of_patterns, kConvert, " (--include, --exclude)"},
    {Remedy::of_selection, kConvert, " (--include, --exclude and --model-only leave names out)"},
    {Remedy::of_rename, kConvert, " (--rename)"},
    {Remedy::of_tie, kConvert, " (--tie)"},
    {Remedy::of_dtype, kConvert, " (--dtype)"},
    {Remedy::of_quantize, kConvert, " (--quantize)"},
    {Remedy::of_config_from, kConvert, " (--config-from)"},
    {Remedy::of_optim_files, kConvert, " (--optim-files)"},
    {Remedy::check, kConvert, " (fsdp-ckpt-convert --check)"},
    {Remedy::merge_first, kConvert,
     ": fsdp-ckpt-convert MODEL OUT --merge-adapter {} --to hf, and then OUT in place of model and adapter"},
    {Remedy::merge_run, kConvert,
     ": fsdp-ckpt-convert BASE OUT --to hf --merge-adapter {} writes the model with them (BASE: the weights that they "
     "were trained for)"},
    {Remedy::model_of_gguf, kConvert, ": for another type make a model of it first (fsdp-ckpt-convert {} DIR --to hf)"},
    // --- devices and steps
    {Remedy::of_device_cuda, kTraining, " (--device cuda)"},
    {Remedy::device_meant, kTraining, " (--device cpu says that this is meant, --device cuda makes it an error)"},
    {Remedy::one_kind_of_device, kTraining,
     ": give each a GPU, leave the node out, or start the job with --device cpu"},
    {Remedy::rank_per_gpu, kTraining, ": start one rank per GPU, or name --device"},
    {Remedy::of_tf32, kTraining, " (--tf32)"},
    {Remedy::of_cuda_graphs, kTraining, " (--cuda-graphs on)"},
    {Remedy::graphs_of_one_rank, kTraining, " (--cuda-graphs on): use one rank or --sharding no-shard"},
    {Remedy::graphs_or_activations, kTraining, ": leave one of the two out, --cuda-graphs on or --offload-activations"},
    {Remedy::graphs_or_cpu_offload, kTraining, ": leave one of the two out, --cuda-graphs on or --cpu-offload"},
    {Remedy::graphs_or_offloaded_states, kTraining,
     ": leave one of the two out, --cuda-graphs on or --offload-optimizer"},
    {Remedy::of_compute_dtype, kTraining, " (--compute-dtype fp8)"},
    {Remedy::fp8_gpu, kTraining, ": --compute-dtype auto goes on without, or ask for Hopper's, Ada's or newer ones"},
    {Remedy::set_shard_group_size, kTraining, "; set --shard-group-size"},
    {Remedy::of_shard_group_size, kTraining, " (--shard-group-size)"},
    // --- offloading
    {Remedy::disk_for_parameters, kTraining,
     ": --offload-parameters needs --offload-optimizer nvme:DIR, the disk for both"},
    {Remedy::parameters_or_sharding, kTraining,
     ": leave one of the two out, --offload-parameters or --sharding optimizer-shard"},
    {Remedy::larger_disk, kFinetune, ": name a larger disk with --offload-optimizer nvme:DIR, or take more ranks"},
    {Remedy::disk_of_each_node, kFinetune, " (--offload-optimizer nvme:DIR needs a directory on a disk of each node)"},
    {Remedy::restart_from_latest, kFinetune,
     "; the run goes on from its last checkpoint (--restart-checkpoint-file latest)"},
    // --- models and adapters
    {Remedy::of_freeze, kTraining, " (--freeze)"},
    {Remedy::of_train_only, kTraining, " (--train-only)"},
    {Remedy::of_frozen, kTraining, " (--freeze, --train-only)"},
    {Remedy::of_dropout, kTraining, " (--dropout)"},
    {Remedy::of_widths, kTraining, " (--embed-size, --num-heads)"},
    {Remedy::of_weight_tying, kTraining, " (--ensure-weight-tying)"},
    {Remedy::of_new_tokens, kTraining, " (--trainable-tokens new means those of --add-tokens)"},
    {Remedy::model_and_adapter, kTexts, ": give that model and this with --adapter"},
    {Remedy::folder_of_gguf, kConvert, ": fsdp-ckpt-convert {} DIR --to hf makes it"},
    {Remedy::checkpoint_as_model, kFinetune,
     ": --restart-checkpoint-file goes on from a checkpoint, and fsdp-ckpt-convert --to hf makes a model's folder of "
     "it"},
    // --- predictions
    {Remedy::of_rates, kMemprobe, "; --rates takes what fsdp-bf16check --json has printed"},
    {Remedy::of_calibration, kMemprobe, "; --calibration takes memory.json of fsdp-finetune's runs"},
    {Remedy::of_collectives, kMemprobe, " (--collectives host-staged); leave it out with --gpu"},
    {Remedy::smaller_model, kTraining,
     ": choose smaller --num-layers, --embed-size, --ffn-hidden-size or --vocab-size, or another --model"},
    {Remedy::smaller_batch, kTraining, ": choose a smaller --batch-size or --seq-len"},
    // --- steps and rows
    {Remedy::other_batch, kTraining, "; use --total-batch-size {} or another --batch-size"},
    {Remedy::of_accumulation, kTraining, " (--gradient-accumulation-steps, --total-batch-size)"},
    {Remedy::of_decay, kTraining, " (--decay-steps): the decay is the end of --max-steps or --schedule-steps"},
    {Remedy::smaller_batch_size, kTraining, ": choose a smaller --batch-size"},
    {Remedy::of_seq_len, kSequences, " (--seq-len)"},
    {Remedy::pack_again, kTexts, ": encode the texts again with fsdp-download tokens --documents --pack --seq-len {}"},
    {Remedy::packed_already, kTraining,
     ": leave --pack out, or make a file of documents (fsdp-download tokens --documents)"},
    {Remedy::smaller_split, kFinetune, " (--val-split): give a longer text, a smaller share or a shorter --seq-len"},
    {Remedy::of_left_out_ids, kFinetune, " (--seq-len and --max-rows leave ids out)"},
    // --- texts
    {Remedy::give_tokenizer, kTexts, ": give --tokenizer gpt2, a directory or ORG/NAME"},
    {Remedy::other_tokenizer, kFinetune,
     "; encode the texts with the model's tokenizer, or insist with --allow-other-tokenizer"},
    {Remedy::stream_passed_over, kTexts,
     ": --stream is passed over; to join them, encode the texts with fsdp-download tokens --stream"},
    {Remedy::train_on_passed_over, kTexts, ": --train-on all is passed over"},
    {Remedy::template_passed_over, kTexts, ": --chat-template {} is passed over"},
    {Remedy::of_chat_template, kAllTexts, " (--chat-template)"},
    {Remedy::other_template, kAllTexts,
     "; choose another with --chat-template, or add the token to tokenizer and model"},
    {Remedy::name_template, kAllTexts, "; name one with --chat-template: {}"},
    {Remedy::forgot_model, kFinetune,
     ": did you forget --model (of fsdp-download tokens --tokenizer DIR)? Otherwise name one with --chat-template: {}"},
    {Remedy::mark_answers, kAllTexts, " (--chat-template FILE), or learn all tokens (--train-on all)"},
    {Remedy::of_eos, kDownload, " (--eos on)"},
    {Remedy::of_form, kDownload, " (--form; in fsdp-finetune and fsdp-eval --data-form)"},
    {Remedy::data_field, kTexts, "; --data-field names the one to read (of fsdp-download tokens: --field)"},
    {Remedy::stream_or_documents, kAllTexts, ": give one of --stream and --documents"},
    {Remedy::one_kind_of_files, kAllTexts, "; give --stream or --documents, or one kind of files"},
    {Remedy::results_anew, kEval, "; --overwrite begins the file anew, another --output leaves it as it is"},
    // --- runs
    {Remedy::another_run_name, kFinetune, ", or choose another --run-name"},
    {Remedy::of_out_dir, kFinetune, " (see --out-dir)"},
    {Remedy::of_watch, kFinetune, " (fsdp-eval --watch)"},
    {Remedy::name_pre_tokenizer, kConvert, ": name one with --pre-tokenizer (llama.cpp, llama-vocab.cpp)"},
    {Remedy::plain_marks, kAllTexts, ": remove it and take --marks plain"},
    {Remedy::of_run_name, kFinetune, " (--run-name)"},
    {Remedy::name_below, kFinetune, ": give a name below it (--run-name), and another --out-dir for another place"},
    {Remedy::other_run_name, kFinetune, "; give another (--run-name)"},
    {Remedy::of_run_folder, kFinetune, " (--out-dir, --run-name)"},
    {Remedy::restart_from_weights, kFinetune, ": restart from its weights alone (fsdp-ckpt-convert --model-only)"},
    {Remedy::convert_one, kConvert, ": convert the one you want with fsdp-ckpt-convert --include"},
    {Remedy::newer_checkpoint, kFinetune,
     " (--keep-optimizer): restart from a newer checkpoint, or begin anew with --model and the weights, which "
     "fsdp-ckpt-convert --to hf writes"},
    {Remedy::name_config, kTexts, " (fsdp-finetune --model, fsdp-eval --model-config)"},
    {Remedy::leave_size_out, kFinetune, ": leave --{} out"},
    {Remedy::give_size, kFinetune, ": give --{} if the tensors are right"},
    {Remedy::give_num_heads, kFinetune, ": give --num-heads, or a directory with its config.json"},
    {Remedy::model_for_adapters, kFinetune,
     ": to train adapters for it, give as --model a folder that fsdp-ckpt-convert --to hf makes of it"},
    {Remedy::name_base, kFinetune, ": name those with --model"},
    {Remedy::folder_of_runs, kFinetune, " (--out-dir names the folder of the runs)"},
    {Remedy::one_of_runs, kFinetune, "; --run-name NAME goes on with one of them"},
    {Remedy::go_on_from, kFinetune, ": --restart-checkpoint-file {} goes on from it"},
    // --- downloads
    {Remedy::of_revision, kDownload, " (--revision)"},
    {Remedy::all_formats, kDownload, "; --all-formats fetches them"},
    {Remedy::other_cache, kDownload, "; choose another place with --cache-dir, --local-dir or HF_HOME"},
    {Remedy::name_cache, kDownload, " (fsdp-download: or give --cache-dir or --local-dir)"},
    {Remedy::type_dataset, kDownload, "; for a dataset add --type dataset"},
    {Remedy::fewer_jobs, kDownload, "; try later, with fewer --jobs or with a token in HF_TOKEN"},
});

}  // namespace

std::span<const RemedyRow> remedy_rows() { return kRows; }

std::string words_of_advice(const Advice& advice) {
  if (advice.remedy == Remedy::none) return "";
  const auto row = std::find_if(kRows.begin(), kRows.end(), [&](const auto& r) { return r.remedy == advice.remedy; });
  return row == kRows.end() ? "" : fmt::format(fmt::runtime(row->text), advice.subject);
}

std::string told(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return error.what() + (ours == nullptr ? "" : words_of_advice(ours->advice()));
}

}  // namespace fsdp
