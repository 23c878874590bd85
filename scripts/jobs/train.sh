# The job that trains any model on any data, under both schedulers: options of the run, what is checked before GPUs are
# used, sweeps, and copies of weights and tokens on the nodes. Source it after slurm.sh or pbs.sh. mingpt and chess are
# callers with defaults of their own.
# shellcheck shell=bash disable=SC2034,SC2154

# True if the ranks find GPUs: on this machine, or in the job that is shown or submitted (gpus_of_job).
has_gpus() { [[ -e /dev/nvidiactl || -n ${gpus_of_job:-} ]]; }

# Sets the variables that decide where the run is. $1: the default RUN_NAME
train_settings() {
    OUT_DIR=${OUT_DIR:-runs}
    RUN_NAME=${RUN_NAME:-$1}
    check_run_name
    PLAN=${PLAN:-}
    run_dir=$OUT_DIR/$RUN_NAME
    default_precision=bf16
    case ${DEVICE:-auto} in
        cpu) default_precision=float32 ;;
        auto) if ! has_gpus; then default_precision=float32; fi ;;
    esac
    download_hint='' data_hint='DATA names a token file, text files or a data set in the cache of the Hugging Face hub'
    model_directory='' train_data='' val_data='' # set by check_inputs
}

# --- options ----------------------------------------------------------------------------------------------------------
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

# True if adapters are trained instead of the model; call after begin_options. Adapters go to RUN/adapter, and no whole
# model is saved.
trains_adapters() {
    [[ ${LORA_RANK:-0} != 0 || $given == *" --lora"[-_]rank* || $given == *" --adapter"[\ =]* ]] || plan_has lora-rank lora_rank adapter
}

# begin_options ARGUMENTS ... end_options: between them the settings of a job fill options for fsdp-finetune.
# ARGUMENTS: the script's own, which take precedence
begin_options() {
    arguments_given "$@"
    options=()
    option_variables
    option --config "$PLAN"
}
end_options() {
    options+=("${variables[@]}")
    option --out-dir "$OUT_DIR"
    option --run-name "$RUN_NAME"
}
# The variables of all jobs that say how is trained.
method_settings() {
    setting OPTIMIZER '' optimizer
    setting FREEZE '' freeze
    setting TRAIN_ONLY '' train-only
    setting CHILD_TUNING '' child-tuning
    setting OFFLOAD '' offload-optimizer offload_optimizer
}
refuse_run_name() {
    if [[ $given == *" --run-name"[\ =]* || $given == *" --out-dir"[\ =]* ]]; then
        die "--run-name and --out-dir are the variables RUN_NAME and OUT_DIR of this script" 2
    fi
}

# train_options ARGUMENTS: options of the general job. fsdp-finetune has the defaults.
train_options() {
    begin_options "$@"
    refuse_run_name
    setting MODEL '' model
    setting DATA '' train-data
    setting VAL_DATA '' val-data
    setting BATCH_SIZE '' batch-size batch_size_per_device
    setting TOTAL_BATCH_SIZE '' total-batch-size gradient-accumulation-steps
    setting MAX_EPOCHS '' max-epochs
    setting MAX_STEPS '' max-steps max_training_steps
    setting LR '' lr learning_rate
    setting SEQ_LEN '' seq-len seq-length max_seq_length
    method_settings
    setting SHARDING '' sharding
    setting PRECISION "$default_precision" precision
    setting DEVICE '' device
    end_options
}

# Sets DATA_DIR, unless it is set, to the shipped data: below the folder of submission, else with the project.
find_shakespeare() {
    if [[ -z ${DATA_DIR:-} ]]; then
        DATA_DIR=data/shakespeare
        if [[ ! -e $DATA_DIR ]]; then DATA_DIR=$FSDP_HOME/data/shakespeare; fi
    fi
}

# mingpt_options JOB ARGUMENTS of fsdp-finetune: sets run_dir and options by the variables that slurm/mingpt.sh lists.
mingpt_options() {
    find_shakespeare
    train_settings "mingpt-$1"
    begin_options "${@:2}"
    option --time-limit "${TIME_LIMIT-}"
    setting MODEL mingpt model
    setting NUM_LAYERS 12 num-layers
    setting NUM_HEADS 12 num-heads
    setting EMBED_SIZE 768 embed-size
    setting SEQ_LEN 256 seq-len
    option --train-data "$DATA_DIR/train.h5"
    option --val-data "$DATA_DIR/validation.h5"
    setting BATCH_SIZE 4 batch-size
    setting TOTAL_BATCH_SIZE '' total-batch-size
    setting MAX_EPOCHS 10 max-epochs
    setting LR 3e-4 lr
    method_settings
    setting SHARDING full-shard sharding
    setting PRECISION bf16 precision
    setting DEVICE auto device
    setting SAVE_INTERVAL_MINUTES 15 save-interval-minutes
    setting KEEP_LAST 3 keep-last
    end_options
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
job_config='' # the configuration as fsdp-finetune parsed it from options and plan, one option per line
# configured NAME: prints an option's value; in job_config, options with default values are comments.
configured() { sed -nE "/^#?$1=[\"']?(.*[^\"'])[\"']?\$/{s//\1/p;q}" <<<"$job_config"; }
read_config() { job_config=$("$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" "${final[@]}" --print-config); } # the script's own arguments

check_model() { # NAME
    local problem name
    model_directory=$(find_snapshot models "$1") ||
        die "model $1: no such directory, and not in the cache $(hub_cache). On a machine with network run ${download_hint:+$download_hint, or }\
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
    read_config "$@" || die "fsdp-finetune does not take these options: ${options[*]} $* ${final[*]}" 2
    name=$(configured model)
    if [[ $name != mingpt ]]; then check_model "$name"; fi
    name=$(configured train-data)
    train_data=$(check_data "$name") ||
        die "training data ${name:-(none)}: not there, empty or not readable. $data_hint" 4
    name=$(configured val-chess)
    if [[ -n $name ]] && ! check_data "$name" >/dev/null; then die "val_chess $name: not there, empty or not readable" 4; fi
    name=$(configured val-data)
    if [[ -z $name ]]; then return; fi
    val_data=$(check_validation "$name") ||
        die "validation data $name: not there, empty or not readable; set VAL_DATA (empty: none)" 4
}

# --- sweeps -----------------------------------------------------------------------------------------------------------
# ARRAY="NAME=VALUE,VALUE... NAME=...": options of fsdp-finetune; each task of a job array trains with one combination.

# Sets sweep_size, the number of combinations, and sweep_axes, the words of ARRAY. Checks the longest name of a folder that
# take_task would make.
read_sweep() {
    local axis values value longest seen label='' LC_ALL=C # counts bytes
    read -ra sweep_axes <<<"${ARRAY:-}"
    sweep_size=1
    for axis in "${sweep_axes[@]}"; do
        [[ $axis =~ ^-*([A-Za-z0-9][A-Za-z0-9_-]*)=([^,]+(,[^,]+)*)$ ]] || die "ARRAY=$ARRAY: '$axis' is not NAME=VALUE,VALUE,..." 2
        IFS=, read -ra values <<<"${BASH_REMATCH[2]}"
        sweep_size=$((sweep_size * ${#values[@]}))
        longest='' seen=/
        for value in "${values[@]}"; do
            if ((${#value} > ${#longest})); then longest=$value; fi
            [[ $seen != */"${value//\//_}"/* ]] || die "ARRAY=$ARRAY: two runs would have the folder ${BASH_REMATCH[1]}-${value//\//_}" 2
            seen+=${value//\//_}/
        done
        label+=${label:+,}${BASH_REMATCH[1]}-${longest//\//_}
    done
    check_name_length "ARRAY (NAME-VALUE,... names the folder of each run; links with short names shorten it)" "$label"
}

# take_task INDEX: adds the options of this task of the array to final, and their values to RUN_NAME, which becomes a
# folder of the sweep's runs. The last word of ARRAY changes fastest. Does nothing without ARRAY.
take_task() {
    local rest=$1 i name values value label=''
    read_sweep
    ((${#sweep_axes[@]})) || return 0
    if ((sweep_size == 1)); then rest=0; fi
    [[ -n $rest ]] || die "ARRAY needs a job array, of $sweep_size tasks: start this script with bash, which submits one" 2
    ((rest < sweep_size)) || die "task $rest of the array has no combination of ARRAY=$ARRAY, which has $sweep_size" 2
    for ((i = ${#sweep_axes[@]} - 1; i >= 0; i--)); do
        name=${sweep_axes[i]%%=*}
        while [[ $name == -* ]]; do name=${name#-}; done
        IFS=, read -ra values <<<"${sweep_axes[i]#*=}"
        value=${values[rest % ${#values[@]}]}
        rest=$((rest / ${#values[@]}))
        final=("--$name=$value" "${final[@]}")
        label=$name-$value${label:+,$label}
    done
    label=${label//\//_}
    if [[ $RUN_NAME != */"$label" ]]; then RUN_NAME+=/$label; fi # a job that submits itself again passes its name on
    run_dir=$OUT_DIR/$RUN_NAME
}

# tell_of_this_job JOB VARIABLE: says that the script trains in a job that it did not submit, where a user started it in a shell
# of that job. The scheduler runs a copy of another name.
tell_of_this_job() {
    case ${0##*/} in
        train.sh | train.pbs) say "this shell is in job $1, in which this trains; env -u $2 bash $0 ... submits a job of its own" ;;
    esac
}

# --- weights and tokens on the nodes ----------------------------------------------------------------------------------
# Where STAGE names a folder of each node, copies the model and the token file there, once per node, and adds options that
# read the copies. Checkpoints name the originals (FSDP_STAGED). If a copy fails anywhere, all ranks read the originals.
# Call after check_inputs and choose_launcher.
stage_inputs() {
    local stage=${STAGE:-} code=0 i
    local -a sources=() options_of=()
    if [[ $stage =~ ^\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?(/.*)?$ ]]; then # '$TMPDIR' of the job, not of the shell that submitted it
        stage=${!BASH_REMATCH[1]:-}${BASH_REMATCH[2]}
        [[ -n $stage ]] || say "STAGE=$STAGE is empty in this job: nothing is copied"
    fi
    if [[ -z $stage ]]; then return; fi
    [[ $stage == /* ]] || die "STAGE=$stage is not the path of a folder of the nodes" 2
    if [[ -d $model_directory ]]; then
        sources+=("$(realpath -s "$model_directory")")
        options_of+=(--model)
    fi
    if [[ -f $train_data && $train_data == *.@(h5|hdf5) ]]; then # of texts, the program keeps the tokens in its cache
        sources+=("$(realpath -s "$train_data")")
        options_of+=(--train-data)
    fi
    if ((${#sources[@]} == 0)); then return; fi
    stage=${stage%/}/fsdp-stage-$(id -un)
    if ((${#once_per_node[@]} == 0)); then
        say "STAGE: LAUNCHER does not say how to start one process per node: nothing is copied"
        return
    fi
    "${once_per_node[@]}" bash "$FSDP_HOME/scripts/jobs/stage.sh" "$stage" "${sources[@]}" || code=$?
    if ((code)); then
        say "STAGE: the copies failed (code $code): ranks read ${sources[*]}"
        return
    fi
    for ((i = 0; i < ${#sources[@]}; i++)); do final+=("${options_of[i]}" "$stage${sources[i]}"); done
    export FSDP_STAGED=$stage
}

# --- the job ----------------------------------------------------------------------------------------------------------
# train_job OPTIONS ARGUMENTS of fsdp-finetune: checks, copies and trains. OPTIONS: the function that fills options, such as
# train_options. Call after train_settings and take_task.
train_job() {
    local fill_options=$1 started
    shift
    "$fill_options" "$@"
    check_inputs "$@"
    say "model ${model_directory:-mingpt}, data $train_data, validation ${val_data:-none}"
    if [[ -n ${SLURM_JOB_GPUS:-} && ! -e /dev/nvidiactl && $(configured device) == auto ]]; then
        say "this job has GPUs, but the node has no NVIDIA driver: training on the CPU"
    fi
    export HF_HUB_OFFLINE=1
    choose_launcher
    if declare -F set_up_nccl >/dev/null; then set_up_nccl; fi
    started=$SECONDS
    stage_inputs
    # The program counts from its own start.
    if declare -F set_time_limit >/dev/null; then set_time_limit $((180 + SECONDS - started)); fi
    option --time-limit "${TIME_LIMIT-}"
    train "$@"
}

# The variables that a job reads, beside FSDP_OPT_NAME and those of site files.
job_variables=(MODEL DATA VAL_DATA BATCH_SIZE TOTAL_BATCH_SIZE MAX_EPOCHS MAX_STEPS LR SEQ_LEN OPTIMIZER FREEZE TRAIN_ONLY
    CHILD_TUNING OFFLOAD SHARDING DEVICE PRECISION PLAN OUT_DIR RUN_NAME ARRAY TIME_LIMIT STAGE CONTAINER CONTAINER_BIND
    CONTAINER_OPTIONS HOST_MPI SRUN_MPI LAUNCHER MAX_IDLE_RESTARTS RANKS_PER_NODE CPU_BIND DEPTH NCCL_PLUGIN_DIR RESUBMIT HF_HOME
    HF_HUB_CACHE FSDP_HOME FSDP_BIN FSDP_SITE)

# Sets assignments to NAME=VALUE for each exported variable of the job, which the schedulers pass on from this shell.
read_assignments() {
    local name exported
    exported=" $(compgen -e | tr '\n' ' ')"
    assignments=()
    for name in "${job_variables[@]}" $(compgen -e FSDP_OPT_); do
        if [[ $exported == *" $name "* ]]; then assignments+=("$name=${!name}"); fi
    done
}

# rank_command RUN_NAME ARGUMENTS: prints the command of a rank. It changes the settings: call it in a subshell, after
# find_programs.
rank_command() {
    train_settings "$1"
    shift
    take_task 0
    train_options "$@"
    join_words "$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" "${final[@]}"
}

# tell_of_walltime SECONDS: says where WALLTIME leaves less than ten minutes before the last SECONDS of a job, in which it saves.
tell_of_walltime() {
    local seconds left
    read_seconds "${WALLTIME:-}" || return 0 # other forms are the scheduler's to read
    left=$((seconds - $1))
    if ((left < 600)); then
        say "WALLTIME=$WALLTIME leaves $((left > 0 ? left : 0)) s for training in each job, which stops $1 s before its end to save"
    fi
}

# submit_train ARGUMENTS of fsdp-finetune: submits this script, by the scheduler's submission (slurm.sh, pbs.sh), and ends it.
# Refuses what the job would refuse, if the programs start on this machine. --show as first argument only prints the whole
# command, which needs no scheduler, and after a # the one that each rank runs.
submit_train() {
    local show=0 count=''
    if [[ ${1:-} == --show ]]; then show=1; shift; fi
    find_programs fsdp-finetune
    ( # the run's name is not known yet
        train_settings submission
        take_task 0
        train_options "$@"
        code=0
        read_config "$@" 2>/dev/null || code=$?
        if ((code < 126)); then check_inputs "$@"; fi
    )
    read_sweep
    if ((sweep_size > 1)); then count=" (the first of $sweep_size runs)"; fi
    export FSDP_HOME
    if [[ -n ${FSDP_SITE:-} ]]; then FSDP_SITE=$(realpath -s "$FSDP_SITE"); fi # the job starts in another folder
    [[ ${GPUS:-0} =~ ^(0|[1-9][0-9]*)$ ]] || die "GPUS=$GPUS: the number of GPUs per node was expected; their type goes into CONSTRAINT or SUBMIT" 2
    submission "$@"
    if ! ((show)) && ! command -v "$submit_with" >/dev/null; then
        die "there is no $submit_with here, which login nodes have: nothing is submitted. --show prints what would be, and this \
trains here, as one rank$count: $(rank_command train "$@")" 2
    fi
    # The nodes of the job have GPUs that a login node lacks.
    if ((show)) && [[ ${words[*]} =~ (ngpus=|--gpus|--gres=gpu|=gpu) ]]; then gpus_of_job=yes; fi
    read_assignments
    words=(env "${assignments[@]}" "${words[@]}")
    if ((show)); then
        join_words "${words[@]}"
        echo "# each rank$count runs: $(rank_command train-JOBID "$@")"
        exit
    fi
    say "$(join_words "${words[@]}")"
    exec "${words[@]}"
}
