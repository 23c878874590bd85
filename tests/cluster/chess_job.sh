#!/usr/bin/env bash
# Runs slurm/chess_finetune.sh in a real, small Slurm with 4 nominal GPUs per node, on a tiny model shaped like CodeLlama
# and the shipped games: missing inputs end it in seconds; the batch size per device does not change the training.
set -euo pipefail
source "$(dirname "$0")/common.sh"

start_slurm
load_programs
cd "$work"
unset "${!HF_@}" "${!SLURM_JOB@}" MODEL DATA VAL_DATA PLAN RUN_NAME
export FSDP_BIN HF_HOME=$work/hf OUT_DIR=$work/runs DEVICE=cpu MAX_SEQ_LENGTH=128 LEARNING_RATE=3e-3
snapshot=$("$FSDP_PYTHON" "$here/tiny_codellama.py" cache "$HF_HOME/hub")
script=$FSDP_SOURCE/slurm/chess_finetune.sh

# run NAME CODE VARIABLE=VALUE... -- ARGUMENTS of the script: submits the script as users do, but with fewer cores, which
# this machine lacks.  The job must end with CODE; its output is NAME.out.
run() {
    local name=$1 code=$2 job
    local -a variables=()
    shift 2
    while [[ $1 != -- ]]; do variables+=("$1"); shift; done
    job=$(env RUN_NAME="$name" "${variables[@]}" sbatch --parsable --cpus-per-task=1 --output="$work/$name.out" "$script" "${@:2}")
    wait_for 120 ended "$job" || { cat "$name.out"; fail "job $name is still $(state "$job")"; }
    scontrol show job "$job" >"$name.job"
    grep -q "ExitCode=$code:0" "$name.job" || { cat "$name.job" "$name.out"; fail "job $name did not end with $code"; }
}
says() { grep -qF -e "$2" "$1.out" || { cat "$1.out"; fail "job $1 does not say: $2"; }; } # NAME TEXT

echo "-- what is missing is told before anything starts"
train=$FSDP_SOURCE/data/chess/train.jsonl
run no-model 4 --
says no-model "fsdp-download codellama/CodeLlama-7b-hf"
run no-data 4 MODEL=tiny/CodeLlama --
says no-data "training data $OUT_DIR/data/strategic_game_chess.h5"
cp -R "$snapshot" cut
truncate -s -1000 cut/model-00002-of-00002.safetensors
run cut-model 4 MODEL="$work/cut" DATA="$train" --
says cut-model "model-00002-of-00002.safetensors"
for name in no-model no-data cut-model; do
    if [[ -e $OUT_DIR/$name ]] || grep -q srun "$name.out"; then fail "$name: something was started"; fi
done

echo "-- 16 games per step, by 1, 2 and 4 at once on each of 4 ranks"
for size in 1 2 4; do
    run size-$size 0 MODEL=tiny/CodeLlama DATA="$train" MAX_TRAINING_STEPS=6 TOTAL_BATCH_SIZE=16 BATCH_SIZE_PER_DEVICE=$size --
    says size-$size "16 rows per step (4 ranks x $size"
done
grep -q 'Features=gpu80' size-1.job && grep -q 'gres.*gpu:4' size-1.job || { cat size-1.job; fail "1 node with 4 GPUs of 80 GB was not asked for"; }
# The two runs sum in different orders: float32 rounding differs, and the difference grows over the steps.
same_losses size-1 size-2 --relative 1e-5 --steps 6
same_losses size-1 size-4 --relative 1e-5 --steps 6
[[ -s $OUT_DIR/size-4/hf/config.json && -s $OUT_DIR/size-4/hf/tokenizer.model ]] || fail "no directory for transformers was written"

echo "-- 64 games per step, 1 at once, without being told"
run seed 0 MODEL="$snapshot" DATA="$train" MAX_TRAINING_STEPS=1 --
says seed "64 rows per step (4 ranks x 1 x 16 micro-batches)"
