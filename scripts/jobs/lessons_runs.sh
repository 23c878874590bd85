# How scripts/lessons makes its runs: data, commands, state of earlier runs. Sourced by scripts/lessons.
# shellcheck shell=bash disable=SC2034,SC2154

# Ends the script after a signal; finished runs are kept.
leave() {
    say "stopped; the same command goes on from here"
    exit "$interrupted"
}

# Prints the number of GPUs that programs will see here.
count_gpus() {
    local entry count=0
    if [[ ${DEVICE:-auto} == cpu || ! -e ${1:-/dev/nvidiactl} ]]; then
        :
    elif [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        for entry in ${CUDA_VISIBLE_DEVICES//,/ }; do
            if [[ $entry == -1 || $entry == NoDevFiles ]]; then break; fi # CUDA ignores this entry and all that follow
            ((++count))
        done
    else
        count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || count=1
    fi
    echo "$count"
}

# Holds OUT_DIR/lock, which names its owner, until this shell ends for any reason. If the file system has no locks, or none
# across nodes, the runs' own claims still protect them: see somebody_elses.
take_lock() {
    local code=0
    exec 9>>"$out/lock" || die "OUT_DIR=$out is not writable" 1
    if command -v flock >/dev/null; then flock -n 9 2>/dev/null || code=$?; else code=127; fi
    if ((code == 1)); then die "$(<"$out/lock") is at work in $out: wait for it, or choose another OUT_DIR" 4; fi
    if ((code == 0)); then echo "host $(uname -n), process $$" >"$out/lock"; fi
}

# Sets train_data and VOCAB_SIZE. With a vocabulary of bytes most of the time goes to the layers, as in models that are
# worth sharding: the 50257 ids of GPT-2 would take three quarters of a small model. Its first 256 ids are the bytes.
make_tokens() {
    local text=$FSDP_HOME/data/shakespeare/train.csv bytes=$out/data/bytes
    train_data=${TRAIN_DATA:-$out/data/train-$SEQ_LEN.h5}
    if [[ -n ${TRAIN_DATA:-} ]]; then
        [[ -e $TRAIN_DATA ]] || die "TRAIN_DATA=$TRAIN_DATA is not there" 4
        VOCAB_SIZE=${VOCAB_SIZE:-50257}
        return
    fi
    VOCAB_SIZE=256
    if [[ -n $dry_run || -e $train_data ]]; then return; fi
    mkdir -p "$bytes"
    tr -d '\n' <"$FSDP_HOME/data/gpt2/vocab.json" | sed 's/, "/,\n"/g' | sed -n '1,256p' | tr -d '\n' | sed 's/,$/}/' >"$bytes/vocab.json"
    echo '#version: 0.2' >"$bytes/merges.txt"
    "$FSDP_BIN/fsdp-download" tokens --quiet --input "$text" --tokenizer "$bytes" --seq-len $((SEQ_LEN + 1)) \
        --output "$train_data" >/dev/null || die "the data could not be made, see above"
}

# Sets model_options, which fsdp-memprobe takes as well, and run_options.
common_options() {
    model_options=(--model mingpt --num-layers "$NUM_LAYERS" --num-heads "$NUM_HEADS" --embed-size "$EMBED_SIZE"
        --vocab-size "$VOCAB_SIZE" --seq-len "$SEQ_LEN" --device "$DEVICE")
    run_options=(--train-data "$train_data" --max-steps "$STEPS" --lr 3e-4 --warmup-steps 3 --no-save --no-tensorboard
        --log-every "$STEPS" --out-dir "$out/runs")
}

declare -A told=() finished=() # runs that --dry-run has listed; runs that are finished as requested
# folder NAME REPEAT: prints the run's name below OUT_DIR/runs.
folder() { if (($2 == 1)); then echo "$1"; else echo "$1-again-$2"; fi; }

# command_of NAME REPEAT: fills words; the setting's own options come last, so they take precedence.
command_of() {
    split_words "${options_of[$1]}"
    words=("${model_options[@]}" --precision "$PRECISION" --batch-size "$BATCH_SIZE" "${run_options[@]}"
        --run-name "$(folder "$1" "$2")" "${words_of[@]}")
}

# Prints the ranks and nodes of the runs, which identify a run as much as its options do.
places() {
    local nodes=${SLURM_JOB_NUM_NODES:-$(((RANKS + ${RANKS_PER_NODE:-$RANKS} - 1) / ${RANKS_PER_NODE:-$RANKS}))}
    echo "RANKS=$RANKS RANKS_PER_NODE=${RANKS_PER_NODE:-$RANKS} NODES=$nodes OMP_NUM_THREADS=${OMP_NUM_THREADS:-}"
}

# state_of FOLDER COMMAND: prints finished, memory (it ran out of memory), begun (with a checkpoint) or new. A run of
# another command counts as new.
state_of() {
    local run=$out/runs/$1
    if [[ ! -e $out/commands/$1 || $(<"$out/commands/$1") != "$2" ]]; then
        echo new
    elif [[ -e $out/commands/$1.memory ]]; then
        echo memory
    elif grep -qs '"outcome": "done"' "$run/job.json"; then
        echo finished
    elif compgen -G "$run/checkpoints/*/run.json" >/dev/null; then
        echo begun
    else
        echo new
    fi
}

# run NAME REPEAT: makes the run, or continues it, unless it is done.
run() {
    local where words command before state log code=0
    where=$(folder "$1" "$2")
    command_of "$1" "$2"
    command="$(places) $(join_words "${words[@]}")"
    state=$(state_of "$where" "$command")
    if [[ -n $dry_run ]]; then
        case $state${told[$where]:+again} in
            new | begun) printf '  run   %-22s %s\n' "$where" "${options_of[$1]}" ;;
            *) printf '  kept  %s\n' "$where" ;;
        esac
        told[$where]=yes
        return
    fi
    if [[ $state == finished ]]; then run_is_there "$where"; fi
    if [[ $state == finished || $state == memory ]]; then return; fi
    if [[ -n $interrupted ]]; then leave; fi
    log=$out/logs/$where.log
    rm -f "$out/commands/$where.memory"
    before=$(cat "$out/commands/$where" 2>/dev/null) || true
    echo "$command" >"$out/commands/$where"
    if [[ $state == begun ]]; then words+=(--restart-checkpoint-file latest); fi
    say "$1${options_of[$1]:+: ${options_of[$1]}}"
    "${launch[@]}" "$FSDP_BIN/fsdp-finetune" "${words[@]}" >"$log.$$" 2>&1 </dev/null 9>&- || code=$?
    if ((code != 0)) && grep -q 'belongs to a job that is running' "$log.$$"; then somebody_elses "$where" "$before" "$log.$$"; fi
    mv "$log.$$" "$log"
    if [[ -n $interrupted ]]; then leave; fi
    case $code in
        0) run_is_there "$where" ;;
        85) interrupted=85; leave ;;
        *)
            if grep -qE 'out of memory|OUT_OF_MEMORY|oom-kill' "$log"; then
                say "$where ran out of memory"
                : >"$out/commands/$where.memory"
                return
            fi
            ((++failures))
            say "$where ended with code $code, see $log:"
            tail -n 5 "$log" >&2 ;;
    esac
}

# run_is_there FOLDER: accepts a run if it had the number of ranks that the page will state.
run_is_there() {
    local ranks
    ranks=$(sed -nE 's/^ *"world_size": ([0-9]+),?$/\1/p' "$out/runs/$1/job.json" | head -n 1)
    if [[ -n $ranks && $ranks != "$RANKS" ]]; then
        die "$1 was made by $ranks rank(s), and RANKS is $RANKS: have LAUNCHER start $RANKS, or set RANKS=$ranks" 2
    fi
    finished[$1]=yes
    one_job=$out/runs/$1/job.json
}

# somebody_elses FOLDER COMMAND LOG: ends the script because another job makes the run; that job's files are kept.
somebody_elses() {
    if [[ -n $2 ]]; then echo "$2" >"$out/commands/$1"; else rm -f "$out/commands/$1"; fi
    grep 'belongs to a job that is running' "$3" | sort -u | head -n 1 >&2
    rm -f "$3"
    die "somebody else is at work in $out: wait for it, or choose another OUT_DIR" 4
}

# probe OPTIONS...: runs fsdp-memprobe for these ranks; memory on CPUs is MEMORY. Exit status 3 is a valid answer.
probe() {
    local code=0
    local -a nodes=(--ranks "$RANKS")
    if [[ -n ${RANKS_PER_NODE:-} ]]; then nodes+=(--ranks-per-node "$RANKS_PER_NODE"); fi
    # fsdp-memprobe runs as a single process: remove the job's variables, which would make MPI look for the other ranks.
    env -u SLURM_STEP_NUM_TASKS -u PMI_RANK -u PMIX_RANK -u PALS_RANKID -u OMPI_COMM_WORLD_RANK "$FSDP_BIN/fsdp-memprobe" "${model_options[@]}" "${nodes[@]}" \
        --precision "$PRECISION" ${MEMORY:+--memory "$MEMORY"} "$@" </dev/null || code=$?
    ((code == 0 || code == 3)) || die "fsdp-memprobe ended with code $code" "$code"
}
