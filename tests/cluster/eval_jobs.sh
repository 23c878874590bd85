#!/usr/bin/env bash
# Runs slurm/eval.sh in a real, small Slurm and pbs/eval.pbs in the environment of a PBS job: two checkpoints, one of which
# is none, then again; the results are those of one rank, and are asked for once.
set -euo pipefail
source "$(dirname "$0")/common.sh"

start_slurm
cd "$work"
unset "${!SLURM_JOB@}"
models=$FSDP_SOURCE/tests/fixtures/benchmarks/models tasks=$FSDP_SOURCE/tests/fixtures/benchmarks/tasks
export FSDP_BIN DEVICE=cpu PRECISION=float32 TASKS="$tasks/endings.yaml $tasks/sums.yaml"

show_and_fail() { cat "$work/$1.out" || true; fail "$2"; }
# submit NAME CODE: runs the job to its end and checks its exit code
submit() {
    local job
    job=$(sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --output="$work/$1.out" "$FSDP_SOURCE/slurm/eval.sh" --limit 6)
    wait_for 120 ended "$job" || show_and_fail "$1" "job $1 is still $(state "$job")"
    scontrol show job "$job" | grep -q "ExitCode=$2:0" || show_and_fail "$1" "job $1 did not end with $2"
}

MODELS="$models/llama $work/nosuch $models/gpt2" submit first 4
cat first.out
grep -q "nosuch: fsdp-eval ended with code 4" first.out || show_and_fail first "a checkpoint that is none was not told"
"$FSDP_BIN/fsdp-eval" "$models/llama" --device cpu --limit 6 --tasks $TASKS >alone 2>/dev/null
value() { awk -F'|' -v column="$2" '/endings/ { task = 1 } task && $5 ~ /acc_norm/ { print $column; exit }' "$1" | grep -oE '[0-9]\.[0-9]{4}' | head -n 1; }
alone=$(awk -F'|' '$6 ~ /acc_norm/ { print $8; exit }' alone | tr -d ' ')
[[ -n $alone && $(value evals/table.md 6) == "$alone" ]] || show_and_fail first "two ranks give $(value evals/table.md 6), one gives $alone"

MODELS="$models/llama $models/gpt2" submit again 0
(($(grep -c "the results are there" again.out) == 2)) || show_and_fail again "results were asked for twice"
LIMIT=3 MODELS="$models/llama" submit options 0
grep -q "the results are there" options.out || show_and_fail options "an argument did not win over its variable"

if [[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]]; then
    echo "-- pbs/eval.pbs"
    hostname >nodefile
    (
        cd /
        env -i HOME="$HOME" PATH="$(dirname "$FSDP_MPIEXEC"):/usr/bin:/bin" FSDP_BIN="$FSDP_BIN" DEVICE=cpu PRECISION=float32 TASKS="$TASKS" \
            MODELS="$models/llama" OUT_DIR=pbs RANKS_PER_NODE=3 DEPTH=1 PBS_JOBID=7.server PBS_JOBNAME=eval \
            PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" ARGS="--limit 6" bash "$FSDP_SOURCE/pbs/eval.pbs"
    ) >pbs.out 2>&1 || show_and_fail pbs "pbs/eval.pbs ended with $?"
    [[ $(value pbs/table.md 6) == "$alone" ]] || show_and_fail pbs "three ranks give $(value pbs/table.md 6), one gives $alone"
fi
echo "as expected"
