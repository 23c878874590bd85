#!/usr/bin/env bash
# Runs slurm/tokens.sh in a real, small Slurm and pbs/tokens.pbs in the environment of a PBS job: the tasks of a job, and the jobs
# of an array, share one input; a job that is signalled requeues itself and goes on. The output has the bytes of one process.
set -euo pipefail
source "$(dirname "$0")/common.sh"

start_slurm
cd "$work"
unset "${!SLURM_JOB@}"
export FSDP_BIN TOKENIZER=gpt2
for _ in {1..40}; do cat "$FSDP_SOURCE/data/chess/train.jsonl"; done >games.jsonl
export INPUT=games.jsonl
"$FSDP_BIN/fsdp-download" tokens --input games.jsonl --tokenizer gpt2 --output alone.h5 --quiet

show_and_fail() { cat "$work/$1"*.out || true; fail "$2"; }
# all_ended JOB: true if no task of an array is left; a job may also be requeued
all_ended() { ! state "$1" | grep -qE "PENDING|CONFIGURING|RUNNING|COMPLETING|REQUEUE"; }
# submit NAME OPTIONS...: runs the job to its end with OUTPUT=NAME.h5
submit() {
    local job name=$1
    shift
    job=$(OUTPUT=$name.h5 sbatch --parsable --cpus-per-task=1 --output="$work/$name-%a.out" "$@" --piece-size 1)
    wait_for 120 all_ended "$job" || show_and_fail "$name" "job $name is still $(state "$job")"
    cmp alone.h5 "$name.h5" || show_and_fail "$name" "$name.h5 has other bytes than that of one process"
}

submit together --ntasks-per-node=2 "$FSDP_SOURCE/slurm/tokens.sh"
cat "$work"/together-*.out
submit array --array=0-2 --ntasks-per-node=1 "$FSDP_SOURCE/slurm/tokens.sh"
for task in 0 1 2; do
    grep -qE "written in|by this process|nothing is left" "array-$task.out" || show_and_fail array "task $task does not say how it ended"
done

echo "-- a signal before the time limit"
job=$(OUTPUT=again.h5 sbatch --parsable --ntasks-per-node=1 --cpus-per-task=1 --output="$work/again.out" "$FSDP_SOURCE/slurm/tokens.sh" --piece-size 0.2 --threads 1)
some_pieces() { compgen -G "$work/again.h5.parts/piece-*.json" >/dev/null; }
wait_for 60 some_pieces || show_and_fail again "no piece was finished"
scancel --signal=USR1 "$job"
wait_for 120 all_ended "$job" || show_and_fail again "job again is still $(state "$job")"
grep -q "stopped, requeueing" again.out || show_and_fail again "the job did not requeue itself"
cmp alone.h5 again.h5 || show_and_fail again "again.h5 has other bytes than that of one process"

if [[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]]; then
    echo "-- pbs/tokens.pbs"
    hostname >nodefile
    (
        cd /
        env -i HOME="$HOME" PATH="$(dirname "$FSDP_MPIEXEC"):/usr/bin:/bin" FSDP_BIN="$FSDP_BIN" INPUT=games.jsonl TOKENIZER=gpt2 OUTPUT=pbs.h5 \
            RANKS_PER_NODE=3 DEPTH=1 PBS_JOBID=7.server PBS_JOBNAME=tokens PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" \
            ARGS="--piece-size 1" bash "$FSDP_SOURCE/pbs/tokens.pbs"
    ) >pbs.out 2>&1 || show_and_fail pbs "pbs/tokens.pbs ended with $?"
    cmp alone.h5 pbs.h5 || show_and_fail pbs "pbs.h5 has other bytes than that of one process"
fi
echo "as expected"
