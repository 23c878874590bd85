# Benchmarks of a list of checkpoints, one after the other. Sourced by slurm/eval.sh and pbs/eval.pbs.
# shellcheck shell=bash disable=SC2034,SC2154

# run_evaluations: asks each of MODELS the TASKS, unless OUT_DIR has its results of the same options, and prints one table.
# Needs launch. Ends the script: 0, or the code of the last evaluation that failed.
run_evaluations() {
    local model name asked code failed=0
    local -a models results=()
    split_words "${MODELS:-}"
    models=("${words_of[@]}")
    ((${#models[@]})) || die "MODELS is empty: name one or several checkpoints" 2
    [[ -n ${TASKS:-} ]] || die "TASKS is empty: name benchmarks; $FSDP_BIN/fsdp-eval --tasks list prints them" 2
    split_words "$TASKS"
    option --device "${DEVICE-}"
    option --precision "${PRECISION-}"
    option --batch-size "${BATCH_SIZE-}"
    option --num-fewshot "${NUM_FEWSHOT-}"
    option --limit "${LIMIT-}"
    mkdir -p "$OUT_DIR" || die "OUT_DIR=$OUT_DIR: cannot be made" 1
    for model in "${models[@]}"; do
        name=${model%/}
        name=${name//[^A-Za-z0-9._-]/_}
        # A folder of a run stands for its newest checkpoint, whose results are others.
        if [[ -d $model/checkpoints ]]; then name+=_$(newest_checkpoint "$model"); fi
        asked=$(join_words "${options[@]}" "${arguments[@]}" --tasks "${words_of[@]}")
        results+=("$OUT_DIR/$name.json")
        if [[ -s $OUT_DIR/$name.json && $(cat "$OUT_DIR/$name.asked" 2>/dev/null) == "$asked" ]]; then
            say "$model: the results are there: $OUT_DIR/$name.json"
            continue
        fi
        say "$model: $asked"
        code=0
        "${launch[@]}" "$FSDP_BIN/fsdp-eval" "$model" --json "${options[@]}" "${arguments[@]}" --tasks "${words_of[@]}" \
            >"$OUT_DIR/$name.part" || code=$?
        if ((code)); then
            say "$model: fsdp-eval ended with code $code"
            failed=$code
            unset 'results[-1]'
            rm -f "$OUT_DIR/$name.part"
            continue
        fi
        echo "$asked" >"$OUT_DIR/$name.asked"
        mv "$OUT_DIR/$name.part" "$OUT_DIR/$name.json"
    done
    if ((${#results[@]})); then
        "$FSDP_BIN/fsdp-eval" --results "${results[@]}" | tee "$OUT_DIR/table.md"
        say "the table is in $OUT_DIR/table.md"
    fi
    ((!failed)) || die "some checkpoints have no results: submit again to ask them alone" "$failed"
}
