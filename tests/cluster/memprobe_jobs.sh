#!/usr/bin/env bash
# fsdp-memprobe in a real, small Slurm: measuring and searching under srun, with the wrong srun --mpi and with a killed
# rank; and as a stage of slurm/chess_pipeline.sh, whose fine-tune uses the plan.
set -euo pipefail
source "$(dirname "$0")/common.sh"

start_slurm
cd "$work"
unset "${!HF_@}" "${!SLURM_JOB@}" "${!SUBMIT@}" MODEL DATA PLAN BATCH_SIZE_PER_DEVICE PRECISION
export FSDP_BIN FSDP_SOURCE DEVICE=cpu
show_and_fail() {
    cat "$1.out" || true
    fail "$2"
}
says() { grep -qE -e "$2" "$1.out" || show_and_fail "$1" "job $1 does not say: $2"; } # NAME WORDS
# submit NAME TASKS ARGUMENTS of fsdp-memprobe: prints the job's id.
cat >job.sh <<'SH'
#!/bin/bash
FSDP_HOME=$FSDP_SOURCE
source "$FSDP_HOME/scripts/jobs/slurm.sh"
choose_launcher
exec ${ALONE:-"${launch[@]}"} "$FSDP_BIN/fsdp-memprobe" --device cpu "$@"
SH
submit() { sbatch --parsable --nodes=1 --ntasks-per-node="$2" --cpus-per-task=1 --output="$work/$1.out" job.sh "${@:3}"; }
# ends NAME JOB CODE: waits for the job and checks its exit code
ends() {
    wait_for 90 ended "$2" || show_and_fail "$1" "job $1 is still $(state "$2")"
    scontrol show job "$2" >"$1.job"
    grep -q "ExitCode=$3:0" "$1.job" || { cat "$1.job"; show_and_fail "$1" "job $1 did not end with $3"; }
}
# gone PATTERN: waits until no process has such a command line.
is_gone() { ! pgrep -f -- "$1" >/dev/null; }
gone() { wait_for 20 is_gone "$1"; }
small=(--num-layers 2 --num-heads 2 --embed-size 64 --vocab-size 1000 --seq-len 128)
# These trials take many minutes.
long=(--num-layers 4 --num-heads 12 --embed-size 768 --ranks 8 --activation-checkpointing all
    --memory 3GiB --measure --search)

echo "-- under srun: ranks of one job measure; trials of a search are no ranks of it"
ends measure "$(submit measure 2 "${small[@]}" --measure)" 0
says measure "^job +2 ranks x"
says measure "^measured .* largest of any rank"
ends search "$(submit search 2 "${small[@]}" --measure --search --memory 200MiB)" 0
says search "largest batch size per device: [1-9][0-9]* \(measured; predicted"

echo "-- the wrong srun --mpi; without srun"
ends wrong "$(SRUN_MPI=none submit wrong 2 --measure)" 4
says wrong "srun started 2 tasks, but MPI sees only this one.*srun --mpi=pmi2"
[[ $(grep -c ^error: wrong.out) == 1 ]] || show_and_fail wrong "not one message"
if grep -q "^memory of rank" wrong.out; then show_and_fail wrong "tables of single ranks"; fi
ends alone "$(ALONE='env' submit alone 2 --ranks 4)" 0
says alone "^job +4 ranks x"

echo "-- a rank that is killed; a search that is cancelled"
mark=--seed=$RANDOM$RANDOM
job=$(submit killed 2 "${long[@]:0:6}" --batch-size 1 --measure --collective-timeout 3 "$mark")
rank_in_a_step() { # sets rank, the process of task 1, once its memory shows that it has states and activations
    local pid
    for pid in $(pgrep -f -- "^[^ ]*fsdp-memprobe .*$mark"); do
        rank=$pid
        if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx SLURM_PROCID=1; then (($(ps -o rss= "$pid") > 500000)) && return; fi
    done 2>/dev/null
    return 1
}
wait_for 60 rank_in_a_step || show_and_fail killed "no step on task 1"
kill -KILL "$rank"
wait_for 90 ended "$job" || show_and_fail killed "the job hangs"
[[ $(state "$job") == FAILED ]] || show_and_fail killed "the job was $(state "$job")"
gone "$mark" || show_and_fail killed "something is left of the job"
cat killed.out
says killed "rank 1 did not arrive|did not arrive: rank 1"
mark=--seed=$RANDOM$RANDOM
job=$(submit cancelled 2 "${long[@]}" "$mark")
wait_for 60 pgrep -f -- "$mark.*--trial" >/dev/null || show_and_fail cancelled "no trial"
scancel "$job"
wait_for 90 ended "$job" || show_and_fail cancelled "the job hangs"
gone "$mark" || show_and_fail cancelled "something is left of the job"

echo "-- the chain: the fine-tune takes the plan; the total batch is kept"
load_programs
mkdir bin
ln -s "$FSDP_BIN"/fsdp-{memprobe,finetune,ckpt-convert,download,eval} bin/
# A stand-in reports emulated bf16, as on older GPUs; training in float32 must go on.
printf '#!/bin/sh\necho "{\\"verdict\\": \\"emulated\\"}"\nexit 3\n' >bin/fsdp-bf16check
chmod +x bin/fsdp-bf16check
HF_HOME=$work/hf
"$FSDP_PYTHON" "$here/tiny_codellama.py" cache "$HF_HOME/hub" >/dev/null
export HF_HOME MODEL=tiny/CodeLlama DATA=$FSDP_SOURCE/data/chess/train.jsonl VAL_DATA='' DOWNLOAD=no
export OUT_DIR=$work/runs RUN_NAME=planned MAX_SEQ_LENGTH=128 TOTAL_BATCH_SIZE=16 MAX_TRAINING_STEPS=3
# Conversion and evaluation would only take time: hold their jobs.
export SUBMIT=--cpus-per-task=1 SUBMIT_CPU=--hold
plan=$OUT_DIR/$RUN_NAME/plan.ini
# Memory between the needs of 2 and of 4 games per rank.
needs() {
    OMP_NUM_THREADS=1 "$FSDP_BIN/fsdp-memprobe" --model "$MODEL" --train-data "$DATA" --max-seq-length 128 --device cpu --ranks 4 \
        --total-batch-size 16 --batch-size "$1" --json 2>/dev/null |
        "$FSDP_PYTHON" -c "import json, sys; print(json.load(sys.stdin)['host']['peak_bytes'])"
}
middle=$((($(needs 2) + $(needs 4)) / 2))
chain() { FSDP_BIN=$work/bin MEMPROBE_ARGS="--memory $middle" bash "$FSDP_SOURCE/slurm/chess_pipeline.sh" "$@" >"$work/chain.out" 2>&1; }
job_of() { sed -nE "s/^$1 +([0-9]+).*/\1/p" chain.out; } # STAGE
chain --seed 3 || show_and_fail chain "the chain ended with $?"
memprobe=$(job_of memprobe) finetune=$(job_of finetune)
[[ -n $memprobe && -n $finetune ]] || show_and_fail chain "memprobe or the fine-tune was not submitted"
wait_for 90 ended "$finetune" || { cat ./*.out; fail "the fine-tune is still $(state "$finetune")"; }
cat chain.out "chess_memprobe-$memprobe.out" "chess_finetune-$finetune.out" "$plan"
[[ $(state "$finetune") == COMPLETED ]] || fail "the fine-tune was $(state "$finetune")"
grep -q "which precision float32 does not need" "chess_bf16check-$(job_of bf16check).out" || fail "the bf16 check does not say why it lets pass"
grep -qx "batch-size=2" "$plan" || fail "the plan does not name the largest batch"
grep -q "16 rows per step (4 ranks x 2 x 2 micro-batches)" "chess_finetune-$finetune.out" || fail "the fine-tune did not take the plan's batch"
grep -q -- '--precision' "$OUT_DIR/$RUN_NAME/stages/memprobe" && fail "the mark holds a precision that nobody asked for"
scancel "$(job_of convert)" "$(job_of eval)"

echo "-- once more: the plan holds; with other options it is made anew; a batch that is named is only looked at"
chain --seed 3 || show_and_fail chain "the second start ended with $?"
for stage in bf16check memprobe finetune; do
    grep -qE "^$stage +- +holds" chain.out || show_and_fail chain "$stage does not hold"
done
scancel "$(job_of convert)" "$(job_of eval)"
for variables in BATCH_SIZE_PER_DEVICE=1 MAX_SEQ_LENGTH=64; do
    (export "${variables?}" && chain --seed 3) || show_and_fail chain "the start with $variables ended with $?"
    memprobe=$(job_of memprobe)
    [[ -n $memprobe ]] || show_and_fail chain "no new plan with $variables"
    scancel "$(job_of finetune)" "$(job_of convert)" "$(job_of eval)"
    wait_for 60 ended "$memprobe" || show_and_fail chain "memprobe does not end"
    [[ $(state "$memprobe") == COMPLETED ]] || { cat "chess_memprobe-$memprobe.out"; fail "memprobe with $variables was $(state "$memprobe")"; }
    grep -E "^(batch-size|seq-len)=" "$plan"
    case $variables in
        BATCH*) grep -qx "batch-size=1" "$plan" || fail "the batch that was named is not in the plan" ;;
        *) grep -qx "batch-size=4" "$plan" || fail "half as long games do not allow twice as many" ;;
    esac
done
echo "as expected"
