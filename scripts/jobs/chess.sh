# Shared by the chess scripts of both schedulers: settings, options of the run, and what is checked before GPUs are used.
# Source it after slurm.sh or pbs.sh.
# shellcheck shell=bash disable=SC2034,SC2154
# shellcheck source=chess_chain.sh
source "$FSDP_HOME/scripts/jobs/chess_chain.sh"

chess_model=codellama/CodeLlama-7b-hf
chess_dataset=laion/strategic_game_chess

# Sets the variables that decide where files are. $1: the default RUN_NAME
chess_settings() {
    OUT_DIR=${OUT_DIR:-runs}
    RUN_NAME=${RUN_NAME:-$1}
    check_run_name
    PLAN=${PLAN:-}
    run_dir=$OUT_DIR/$RUN_NAME
    chess_data=$OUT_DIR/data/$(basename "${DATASET:-$chess_dataset}").h5 # written by chess_download.sh
    default_precision=bf16
    if [[ ${DEVICE:-auto} == cpu || (${DEVICE:-auto} == auto && ! -e /dev/nvidiactl) ]]; then default_precision=float32; fi
    model_directory='' train_data='' val_data='' # set by check_inputs
}

# plan_has NAME...: true if the file PLAN sets one of these options, in either spelling.
plan_has() {
    local name
    [[ -n $PLAN && -r $PLAN ]] || return 1
    for name; do
        if grep -qE "^[[:space:]]*${name//-/[-_]}[[:space:]]*=" "$PLAN"; then return 0; fi
    done
    return 1
}

# setting VARIABLE DEFAULT NAME...: adds option --NAME with the variable's value. If the variable is not set, the plan
# decides (under any of the names); if the plan does not set the option either, DEFAULT. An empty value leaves the option out.
setting() {
    local name=$3
    if [[ -n ${!1+set} ]]; then
        option "--$name" "${!1}"
    elif ! plan_has "${@:3}"; then
        option "--$name" "$2"
    fi
}

# True if adapters are trained instead of the model; call after arguments_given. Adapters go to RUN/adapter, and no whole
# model is saved.
trains_adapters() {
    [[ ${LORA_RANK:-0} != 0 || $given == *" --lora"[-_]rank* || $given == *" --adapter"[\ =]* ]] || plan_has lora-rank lora_rank adapter
}

# Fills options for fsdp-finetune. $@: the script's own arguments, which take precedence
chess_options() {
    arguments_given "$@"
    options=()
    if [[ $given == *" --run-name"[\ =]* || $given == *" --out-dir"[\ =]* ]]; then
        die "--run-name and --out-dir are the variables RUN_NAME and OUT_DIR of this script" 2
    fi
    option_variables
    option --config "$PLAN"
    setting MODEL "$chess_model" model
    setting DATA "$chess_data" train-data
    setting VAL_DATA "$FSDP_HOME/data/chess/validation.jsonl" val-data
    setting BATCH_SIZE_PER_DEVICE 1 batch_size_per_device batch-size
    setting TOTAL_BATCH_SIZE 64 total-batch-size gradient-accumulation-steps
    setting LEARNING_RATE 1e-5 learning_rate lr
    setting OPTIMIZER '' optimizer
    setting FREEZE '' freeze
    setting TRAIN_ONLY '' train-only
    setting CHILD_TUNING '' child-tuning
    setting LORA_RANK '' lora-rank lora_rank
    setting LORA_ALPHA '' lora-alpha lora_alpha
    setting QUANTIZE '' quantize
    setting OFFLOAD '' offload-optimizer offload_optimizer
    setting MAX_TRAINING_STEPS '' max_training_steps max-steps
    setting MAX_SEQ_LENGTH 512 max_seq_length seq-len seq-length
    setting PRECISION "$default_precision" precision
    setting DEVICE auto device
    setting SAVE_INTERVAL_MINUTES 30 save-interval-minutes
    setting KEEP_LAST 2 keep-last
    if ! trains_adapters; then setting SAVE_FINAL_HF "$run_dir/hf" save-final-hf; fi
    options+=("${variables[@]}")
    option --out-dir "$OUT_DIR"
    option --run-name "$RUN_NAME"
}

# --- where models and data are ----------------------------------------------------------------------------------------
hub_cache() {
    local home=${HF_HOME:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/huggingface} cache
    cache=${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-$home/hub}}
    echo "${cache/#\~\//${HOME:-}/}"
}

# find_snapshot models|datasets NAME: prints the folder, as fsdp-finetune finds it: a path that exists, or ORG/NAME or
# ORG/NAME@REVISION in the Hugging Face cache.
find_snapshot() {
    local name=${2%%@*} revision=main folder commit
    if [[ -e $2 ]]; then echo "$2"; return; fi
    [[ $name == */* && $name != */*/* && $name != [./~]* ]] || return 1
    if [[ $2 == *@* ]]; then revision=${2#*@}; fi
    folder=$(hub_cache)/$1--${name/\//--}
    commit=$revision # the revision may be a commit hash
    if [[ -r $folder/refs/$revision ]]; then commit=$(<"$folder/refs/$revision"); fi
    [[ -d $folder/snapshots/$commit ]] || return 1
    echo "$folder/snapshots/$commit"
}

# --- checks that need no GPU and take a second or two -----------------------------------------------------------------
chess_config='' # the configuration as fsdp-finetune parsed it from options and plan, one option per line
# configured NAME: prints an option's value; in chess_config, options with default values are comments.
configured() { sed -nE "/^#?$1=[\"']?(.*[^\"'])[\"']?\$/{s//\1/p;q}" <<<"$chess_config"; }
read_config() { chess_config=$("$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" --print-config); } # the script's own arguments

check_model() { # NAME
    local problem name
    model_directory=$(find_snapshot models "$1") ||
        die "model $1: no such directory, and not in the cache $(hub_cache). On a machine with network run chess_download, or \
fsdp-download $1" 4
    [[ -r $model_directory/config.json ]] || die "model $1: $model_directory has no config.json that can be read" 4
    # Reads the index and the headers: checks that every weight file is there and has its full length.
    problem=$("$FSDP_BIN/fsdp-ckpt-convert" --inspect "$model_directory" 2>&1 >/dev/null) ||
        die "model $1 is not whole: ${problem:-fsdp-ckpt-convert --inspect $model_directory failed}" 4
    if [[ -n $(configured tokenizer) ]]; then return; fi
    for name in tokenizer.model tokenizer.json vocab.json; do
        if [[ -s $model_directory/$name ]]; then return; fi
    done
    die "model $1: $model_directory has no tokenizer (tokenizer.model, tokenizer.json or vocab.json)" 4
}

# check_data NAME: prints the file or folder of the data.
check_data() {
    local path
    path=$(find_snapshot datasets "$1") || return 1
    [[ -r $path ]] || return 1
    if [[ -d $path ]]; then
        [[ -n $(find -L "$path" -type f -size +0 ! -name '.*' -print -quit) ]] || return 1
    else
        [[ -s $path ]] || return 1
    fi
    echo "$path"
}

# check_validation NAME: prints the first file or folder of PATH, or of NAME=PATH,NAME=PATH; all of them must be there.
check_validation() {
    local path first='' paths=$1
    if [[ ! -e $paths && $paths =~ ^[A-Za-z0-9._-]+= ]]; then paths=$(sed -E 's/(^|,)[A-Za-z0-9._-]+=/\n/g' <<<"$paths" | sed 1d); fi
    while IFS= read -r path; do
        path=$(check_data "$path") || return 1
        first=${first:-$path}
    done <<<"$paths"
    echo "$first"
}

# Ends the script with 4 if the plan, the model or data are missing, with 2 if fsdp-finetune rejects the options.
# $@: the script's own arguments
check_inputs() {
    local name
    if [[ -n $PLAN && ! -r $PLAN ]]; then die "PLAN=$PLAN: no such file, or it cannot be read" 4; fi
    read_config "$@" || die "fsdp-finetune does not take these options: ${options[*]} $*" 2
    check_model "$(configured model)"
    name=$(configured train-data)
    train_data=$(check_data "$name") ||
        die "training data ${name:-(none)}: not there, empty or not readable. On a machine with network chess_download makes \
$chess_data; DATA names others, for example $FSDP_HOME/data/chess/train.jsonl" 4
    name=$(configured val-chess)
    if [[ -n $name ]] && ! check_data "$name" >/dev/null; then die "val_chess $name: not there, empty or not readable" 4; fi
    name=$(configured val-data)
    if [[ -z $name ]]; then return; fi
    val_data=$(check_validation "$name") ||
        die "validation data $name: not there, empty or not readable; set VAL_DATA (empty: none)" 4
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

newest_checkpoint() { readlink "$run_dir/checkpoints/latest" 2>/dev/null || true; }
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
            --batch_size_per_device | --batch-size | --device | --save-* | --keep-last | --out-dir | --run-name | --restart* | --time-limit) ;;
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
    [[ -d $run_dir/checkpoints/latest/ ]] && has_mark finetune "$(finetune_mark "$@")"
}
