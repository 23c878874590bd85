# The lessons of scripts/lessons: the runs of each lesson and how their options differ. Sourced by scripts/lessons.
# shellcheck shell=bash disable=SC2034,SC2154
declare -A options_of=([base]='') # options of each run beside the common ones; base has only the common ones
lesson_titles=('' 'Wrapping' 'Recomputing activations' 'Prefetching' 'The batch up to alloc retries'
    'Sharding strategies' 'Precision' 'Full and local checkpoints' 'The rate limiter' 'Batch size against time per step')
lesson_questions=('' 'What is gathered together: each block, all at once, or units of so many parameters?'
    'Activations are kept, or computed again in the backward: of all blocks, or of every second one.'
    'When is the next unit gathered: before the backward of the one in hand, after it, not until it is needed, and in the forward as well?'
    'More sequences at once, up to what fits.'
    'What is split over the ranks, and what is kept whole for less communication?'
    'What gathered parameters, activations and gradients on their way are made of; masters stay float32.'
    'A checkpoint with a file per rank, and one file of all; and a run that goes on from each.'
    'At most two units gathered or on their way, or as many as the processor can ask for.'
    'What does a step take with more sequences, and how many are worth it?')

# set_run NAME OPTIONS: adds a run to the lesson.
set_run() {
    options_of[$1]=$2
    lesson_runs+=("$1")
}

# begin_lesson N: sets lesson_runs.
begin_lesson() {
    lesson_runs=()
    if [[ -z $dry_run ]]; then say "lesson $1: ${lesson_titles[$1]}"; else echo "lesson $1: ${lesson_titles[$1]}"; fi
    "lesson_$1"
}

lesson_1() {
    set_run wrap-block ''
    set_run wrap-none '--wrap none'
    set_run wrap-size "--wrap size:$((24 * EMBED_SIZE * EMBED_SIZE))" # parameters of two blocks
}
lesson_2() {
    set_run recompute-none ''
    set_run recompute-all '--activation-checkpointing all'
    set_run recompute-every-2 '--activation-checkpointing every:2'
}
lesson_3() {
    set_run prefetch-pre ''
    set_run prefetch-none '--backward-prefetch none --no-forward-prefetch'
    set_run prefetch-post '--backward-prefetch post'
    set_run prefetch-forward '--forward-prefetch'
}

# Sets largest_batch, the largest batch that fsdp-memprobe predicts to fit, and batches: doubled up to largest_batch. On
# GPUs a batch that is too large follows.
plan_batches() {
    local batch
    largest_batch=$(probe --search --max-batch "$MAX_BATCH" --json --quiet | figure largest_batch_per_device)
    batches=()
    for ((batch = 1; batch < largest_batch; batch *= 2)); do batches+=("$batch"); done
    if ((largest_batch > 0)); then batches+=("$largest_batch"); fi
    if ((gpus && largest_batch > 0 && largest_batch < MAX_BATCH)); then batches+=($((largest_batch + largest_batch / 8 + 1))); fi
}
lesson_4() {
    local batch
    plan_batches
    for batch in "${batches[@]}"; do
        set_run "batch-$batch" "--batch-size $batch"
    done
}
lesson_9() { lesson_4; }

lesson_5() {
    local group=''
    # On one node a hybrid strategy equals the plain one, unless its groups are smaller than the node.
    if (("${RANKS_PER_NODE:-$RANKS}" == RANKS)); then group=" --shard-group-size $((RANKS > 1 ? RANKS / 2 : 1))"; fi
    set_run full-shard ''
    set_run grad-shard '--sharding grad-shard'
    set_run no-shard '--sharding no-shard'
    if ((RANKS % 2 == 0)); then
        set_run hybrid-full-shard "--sharding hybrid-full-shard$group"
        set_run hybrid-grad-shard "--sharding hybrid-grad-shard$group"
    fi
    hybrid_group=$group
}
lesson_6() {
    local precision
    set_run "$PRECISION" ''
    for precision in float32 bf16; do
        if [[ $precision != "$PRECISION" ]]; then set_run "$precision" "--precision $precision"; fi
    done
    set_run bf16-reduce-float32 '--precision bf16 --reduce-dtype float32'
    if ((gpus)); then set_run fp16 '--precision fp16'; fi
}
lesson_7() {
    local half=$((STEPS / 2))
    set_run uninterrupted ''
    set_run checkpoint-local "--max-steps $((half + 1)) --save-every $half --no-save=false" # saves during training
    set_run checkpoint-full "--max-steps $half --save-final-full $(join_words "$out/full.pt") --overwrite"
    set_run resume-local "--restart-checkpoint-file $(
        join_words "$out/runs/checkpoint-local/checkpoints/$(printf 'step-%08d' "$half")")"
    set_run resume-full "--restart-checkpoint-file $(join_words "$out/full.pt")"
}
lesson_8() {
    set_run limit ''
    set_run no-limit '--no-limit-all-gathers'
}
