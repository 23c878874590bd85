# Shared by the chess scripts of both schedulers: settings, options of the run, and marks of finished stages.
# Source it after slurm.sh or pbs.sh.
# shellcheck shell=bash disable=SC2034,SC2154
# shellcheck source=train.sh
source "$FSDP_HOME/scripts/jobs/train.sh"
# shellcheck source=chess_chain.sh
source "$FSDP_HOME/scripts/jobs/chess_chain.sh"

chess_model=codellama/CodeLlama-7b-hf
chess_dataset=laion/strategic_game_chess

# Sets the variables that decide where files are. $1: the default RUN_NAME
chess_settings() {
    train_settings "$1"
    chess_data=$OUT_DIR/data/$(basename "${DATASET:-$chess_dataset}").h5 # written by chess_download.sh
    download_hint=chess_download
    data_hint="On a machine with network chess_download makes $chess_data; DATA names others, for example $FSDP_HOME/data/chess/train.jsonl"
}

# Fills options for fsdp-finetune. $@: the script's own arguments, which take precedence
chess_options() {
    begin_options "$@"
    refuse_run_name
    setting MODEL "$chess_model" model
    setting DATA "$chess_data" train-data
    setting VAL_DATA "$FSDP_HOME/data/chess/validation.jsonl" val-data
    # A game is a document, of which the first MAX_SEQ_LENGTH tokens are read.
    if [[ $given != *" --stream"* && $given != *" --documents"* ]] && ! plan_has documents stream; then options+=(--documents=true); fi
    setting BATCH_SIZE_PER_DEVICE 1 batch_size_per_device batch-size
    setting TOTAL_BATCH_SIZE 64 total-batch-size gradient-accumulation-steps
    setting LEARNING_RATE 1e-5 learning_rate lr
    method_settings
    setting LORA_RANK '' lora-rank lora_rank
    setting LORA_ALPHA '' lora-alpha lora_alpha
    setting QUANTIZE '' quantize
    setting MAX_TRAINING_STEPS '' max_training_steps max-steps
    setting MAX_SEQ_LENGTH 512 max_seq_length seq-len seq-length
    setting PRECISION "$default_precision" precision
    setting DEVICE auto device
    setting SAVE_INTERVAL_MINUTES 30 save-interval-minutes
    setting KEEP_LAST 2 keep-last
    if ! trains_adapters; then setting SAVE_FINAL_HF "$run_dir/hf" save-final-hf; fi
    end_options
}

# --- finished stages --------------------------------------------------------------------------------------------------
# A finished stage writes a mark into $run_dir/stages: the inputs of the stage. If the mark differs or a result is missing,
# the stage runs again.
mark() { # STAGE TEXT
    mkdir -p "$run_dir/stages"
    printf '%s\n' "$2" >"$run_dir/stages/$1.part"
    mv -f "$run_dir/stages/$1.part" "$run_dir/stages/$1"
}
has_mark() { [[ -r $run_dir/stages/$1 && $(<"$run_dir/stages/$1") == "$2" ]]; } # STAGE TEXT

# Prints the checkpoint that --final selects: the best, or the newest when there is no best. Call after read_config.
final_checkpoint() {
    if [[ $(configured final) == best && -d $run_dir/checkpoints/best/ ]] && readlink "$run_dir/checkpoints/best"; then return; fi
    newest_checkpoint
}

# Prints the options that change what is trained, with values and data; options that say only where and how are left out.
finetune_mark() { # the script's own arguments
    local -a words=()
    local i
    for ((i = 0; i < ${#options[@]}; i += 2)); do
        case ${options[i]%%=*} in
            --batch_size_per_device | --batch-size | --device | --save-* | --keep-last | --out-dir | --run-name | --restart* | --time-limit | --documents) ;;
            # A login node without GPUs has another default precision than the nodes that train.
            --precision)
                if [[ ${options[i]} == *=* ]]; then words+=("${options[i]}")
                elif [[ -n ${PRECISION:-} ]]; then words+=(--precision "$PRECISION"); fi ;;
            --config) words+=("plan $(cksum <"$PLAN" 2>/dev/null || true)") ;;
            *) if [[ ${options[i]} == *=* ]]; then words+=("${options[i]}"); else words+=("${options[i]}" "${options[i + 1]}"); fi ;;
        esac
        if [[ ${options[i]} == *=* ]]; then i=$((i - 1)); fi # of option_variables: one word
    done
    echo "$(newest_checkpoint) ${words[*]} $*"
}
run_finished() { mark finetune "$(finetune_mark "${chess_arguments[@]}")"; }
finetune_holds() { # the script's own arguments
    [[ -n $(newest_checkpoint) ]] && has_mark finetune "$(finetune_mark "$@")"
}
