# The stages of the chess pipeline that have no script of their own, and the chain. Source it after chess.sh.
# shellcheck shell=bash disable=SC2034,SC2154

# Each stage runs as a job and ends the script on failure. $@: the fine-tune's arguments
stage_bf16check() {
    local code=0 found=${DEVICE:-auto}
    chess_options "$@"
    read_config "$@" || die "fsdp-finetune does not take these options: ${options[*]} $*" 2
    choose_launcher
    mkdir -p "$run_dir"
    "${launch[@]}" "$FSDP_BIN/fsdp-bf16check" --device "${DEVICE:-auto}" --json >"$run_dir/bf16check.json" || code=$?
    if ((code == 3)) && [[ $(configured precision) != bf*16 ]]; then
        say "no native bf16 (see $run_dir/bf16check.json), which precision $(configured precision) does not need"
        found=$(without_native_bf16 "$@")
    elif ((code)); then
        die "fsdp-bf16check ended with code $code: see $run_dir/bf16check.json" 3
    fi
    mark bf16check "$found"
}
# The mark of a bf16 check: if bf16 is native it holds for every precision, otherwise for these options only.
without_native_bf16() { echo "${DEVICE:-auto} without native bf16, for ${PRECISION:-} $*"; }
bf16check_holds() { has_mark bf16check "${DEVICE:-auto}" || has_mark bf16check "$(without_native_bf16 "$@")"; }

stage_memprobe() {
    PLAN=''
    chess_options "$@"
    memprobe_options
    choose_launcher
    mkdir -p "$run_dir"
    "${launch[@]}" "$FSDP_BIN/fsdp-memprobe" "${options[@]}" "$@" "${words[@]}" --write-plan "$run_dir/plan.ini" ||
        die "fsdp-memprobe ended with code $?"
    [[ -s $run_dir/plan.ini ]] || die "fsdp-memprobe wrote no $run_dir/plan.ini"
    mark memprobe "$(memprobe_mark "$@")"
}
memprobe_options() { # call after chess_options: sets words, which follow the fine-tune's options
    words=()
    # Search for the largest batch per device unless a batch size is given.
    if [[ -z ${BATCH_SIZE_PER_DEVICE:-} && $given != *" --batch"[_-]size* ]]; then words+=(--search); fi
    split_words "${MEMPROBE_ARGS:-}"
    words+=("${words_of[@]}")
}
memprobe_mark() { # the fine-tune's arguments
    memprobe_options
    echo "$(without_default_precision "${options[*]}") $* ${words[*]}"
}
# Marks do not contain the default precision: on a login node without GPUs it differs from that of the nodes that train.
without_default_precision() { # WORDS
    if [[ -n ${PRECISION:-} ]]; then echo "$1"; else echo "${1/ --precision $default_precision/}"; fi
}

need_finetune() {
    finetune_holds "$@" || die "$run_dir holds no finished fine-tune with these options: run the finetune stage first" 4
    read_config "$@" || die "fsdp-finetune does not take its options" 2
}

# Converts the result to a directory that transformers opens and compares every element with the checkpoint's.
stage_convert() {
    local checkpoint dtype=${HF_DTYPE:-bf16} tolerance=0 from verified
    chess_options "$@"
    need_finetune "$@"
    checkpoint=$(final_checkpoint)
    model_directory=$(find_snapshot models "$(configured model)") || die "the model's configuration and tokenizer are gone" 4
    # A float32 number and its nearest bf16 (fp16) number differ by a relative error of at most 2^-8 (2^-11).
    case $dtype in bf16 | bfloat16) tolerance=0.004 ;; fp16 | float16) tolerance=0.0005 ;; esac
    from=("$run_dir/checkpoints/$checkpoint" --config-from "$model_directory")
    verified=("$run_dir/checkpoints/$checkpoint" "$run_dir/hf")
    if trains_adapters; then # merged into the weights that they were trained on
        from=("$model_directory" --merge-adapter "$run_dir/adapter")
        verified=("$model_directory" "$run_dir/hf" --merge-adapter "$run_dir/adapter")
    fi
    "$FSDP_BIN/fsdp-ckpt-convert" "${from[@]:0:1}" "$run_dir/hf" "${from[@]:1}" --to hf --dtype "$dtype" --overwrite --sync ||
        die "the conversion ended with code $?"
    "$FSDP_BIN/fsdp-ckpt-convert" --verify "${verified[@]}" --model-only --tolerance "$tolerance" ||
        die "$run_dir/hf is not what the checkpoint holds" 3
    mark convert "$checkpoint $dtype"
}
convert_holds() { # the fine-tune's arguments
    read_config "$@" && [[ -s $run_dir/hf/config.json ]] && has_mark convert "$(final_checkpoint) ${HF_DTYPE:-bf16}"
}

# Sets val_data and val_games, the fine-tune's validation data. Moves can be scored only if the games are there as text.
find_eval_data() {
    local name
    val_data='' val_games=''
    name=$(configured val-data)
    if [[ -n $name ]]; then val_data=$(check_validation "$name") || return 1; fi
    name=$(configured val-chess)
    if [[ -n $name ]]; then
        val_games=$(check_data "$name") || return 1
    elif [[ $val_data != *.h5 ]]; then
        val_games=$val_data
    fi
    [[ -n $val_data$val_games ]]
}
eval_options() { # sets the words that follow fsdp-eval MODEL
    local length
    words=(--device "${DEVICE:-auto}" --precision "${PRECISION:-$default_precision}")
    if [[ -n $val_data ]]; then words+=(--data "$val_data"); fi
    length=$(configured seq-len)
    if ((${length:-0} > 0)); then words+=(--seq-len "$length"); fi
    if [[ -n $val_games ]]; then words+=(--chess "$val_games"); fi
    split_words "${EVAL_ARGS:-}"
    words+=("${words_of[@]}")
}

stage_eval() {
    local name
    chess_options "$@"
    need_finetune "$@"
    convert_holds "$@" || die "$run_dir/hf is not what $(final_checkpoint) holds: run the convert stage first" 4
    find_eval_data || die "validation data $(configured val-data) $(configured val-chess): not there; set VAL_DATA" 4
    eval_options
    choose_launcher
    "${launch[@]}" "$FSDP_BIN/fsdp-eval" "$run_dir/hf" "${words[@]}" --json >"$run_dir/eval.json.part" ||
        die "fsdp-eval ended with code $?"
    mv -f "$run_dir/eval.json.part" "$run_dir/eval.json"
    cat "$run_dir/eval.json"
    mark eval "$(eval_mark)"
}
eval_mark() { without_default_precision "$(final_checkpoint) ${HF_DTYPE:-bf16} ${words[*]}"; }
eval_holds() {
    local words
    read_config "$@" || return 1
    find_eval_data || return 1
    eval_options
    [[ -s $run_dir/eval.json ]] && has_mark eval "$(eval_mark)"
}

# --- the chain --------------------------------------------------------------------------------------------------------
# The script defines submit STAGE AFTER ARGUMENTS..., which sets job, and watch JOB..., beside what chess_chain.sh needs.
chain=() # ids of the submitted jobs
line() { printf '%-10s %-14s %s\n' "$1" "$2" "$3"; }

add_stage() { # STAGE ARGUMENTS of the fine-tune
    local after=${chain[*]:+${chain[-1]}}
    if ! submit "$1" "$after" "${@:2}"; then
        if ((${#chain[@]})); then cancel_jobs "${chain[@]}" || true; fi
        chain_forget
        die "$1 was not submitted; the jobs before it are cancelled: ${chain[*]:-none}"
    fi
    line "$1" "$job" "${after:+after $after}"
    chain+=("$job")
    ((dry_run)) || chain_record "$1" "$job"
}

# chess_pipeline ARGUMENTS of the fine-tune
chess_pipeline() {
    local here there downloads=0
    here=$(compgen -G "$FSDP_HOME/$scheduler/chess_download.*")
    if (($# && !dry_run)); then # check arguments before gigabytes are fetched
        "$FSDP_BIN/fsdp-finetune" "$@" --print-config >/dev/null || die "fsdp-finetune does not take these options: $*" 2
    fi
    if ((!dry_run)); then
        there=$(chain_alive | tr '\n' ' ')
        [[ -z $there ]] || die "a chain of $run_dir is under way: ${there% }; wait for it, or --cancel" 1
        chain_forget
    fi
    line stage job ''
    # The fine-tune leaves the conversion to a separate stage, which holds no GPUs.
    export SAVE_FINAL_HF='' FSDP_HOME FSDP_BIN OUT_DIR RUN_NAME
    case ${DOWNLOAD:-here} in
        no) line download - "left out, as DOWNLOAD=no says" ;;
        here)
            if ((dry_run)); then
                if bash "$here" --check >/dev/null; then
                    line download - holds
                else
                    line download - "would run here: $here"
                    downloads=1
                fi
            else
                bash "$here" || die "the download ended with code $?; start the pipeline again to go on" $?
                line download - "holds"
            fi ;;
        *) if bash "$here" --check >/dev/null; then
                line download - holds
            else
                add_stage download
                downloads=1
            fi ;;
    esac
    # If a download comes first, the fine-tune's job checks its inputs. Otherwise errors are reported before any job is
    # queued.
    chess_options "$@"
    if ((downloads)); then
        read_config "$@" || die "fsdp-finetune does not take these options: $*" 2
        line inputs - "model $(configured model), data $(configured train-data): checked when they are there"
    else
        check_inputs "$@"
        line inputs - "model $model_directory, data $train_data, validation ${val_data:-none}"
    fi

    if [[ ! -x $FSDP_BIN/fsdp-bf16check ]]; then
        line bf16check - "fsdp-bf16check: not in FSDP_BIN, stage left out"
    elif bf16check_holds "$@"; then
        line bf16check - holds
    else
        add_stage bf16check "$@"
    fi

    chess_options "$@"
    if [[ ! -x $FSDP_BIN/fsdp-memprobe ]]; then
        line memprobe - "fsdp-memprobe: not in FSDP_BIN, stage left out"
    elif [[ -n $PLAN ]]; then
        line memprobe - "left out, PLAN=$PLAN is given"
    else
        if [[ -s $run_dir/plan.ini ]] && has_mark memprobe "$(memprobe_mark "$@")"; then
            line memprobe - holds
        else
            rm -f "$run_dir/plan.ini"
            add_stage memprobe "$@"
        fi
        PLAN=$run_dir/plan.ini
        export PLAN
        chess_options "$@"
    fi

    # Check the inputs again, with memprobe's plan.
    if ((${#chain[@]} == 0 && !dry_run)); then check_inputs "$@"; fi
    if ((${#chain[@]} == 0)) && finetune_holds "$@"; then
        line finetune - "holds: $run_dir/checkpoints/$(newest_checkpoint)"
    else
        add_stage finetune "$@"
    fi
    if ((${#chain[@]} == 0)) && convert_holds "$@"; then line convert - "holds: $run_dir/hf"; else add_stage convert "$@"; fi
    if ((${#chain[@]} == 0)) && eval_holds "$@"; then line eval - "holds: $run_dir/eval.json"; else add_stage eval "$@"; fi
    if ((${#chain[@]} == 0)); then
        say "everything holds: nothing to do"
    elif ((dry_run)); then
        say "nothing was submitted; the jobs above would be submitted"
    else
        watch "${chain[@]}"
        echo "cancel: $(join_words RUN_NAME="$RUN_NAME" OUT_DIR="$(cd "$OUT_DIR" && pwd)" bash "$FSDP_HOME/$scheduler/chess_pipeline.sh" --cancel)"
    fi
}
