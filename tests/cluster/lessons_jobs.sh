#!/usr/bin/env bash
# Runs slurm/lessons.sh in a real, small Slurm, once completely and again when all is done, and pbs/lessons.pbs in the
# environment of a PBS job.
set -euo pipefail
source "$(dirname "$0")/common.sh"

start_slurm
load_programs
cd "$work"
unset "${!SLURM_JOB@}" TRAIN_DATA LAUNCHER
export FSDP_BIN DEVICE=cpu NUM_LAYERS=2 NUM_HEADS=2 EMBED_SIZE=32 SEQ_LEN=32 BATCH_SIZE=2 STEPS=5 REPEATS=1
show_and_fail() {
    cat "$1.out" || true
    fail "$2"
}
for name in first again; do
    echo "-- under srun: $name"
    job=$(sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --output="$work/$name.out" \
        "$FSDP_SOURCE/slurm/lessons.sh" --only 8)
    wait_for 120 ended "$job" || show_and_fail $name "it is still $(state "$job")"
    [[ $(state "$job") == COMPLETED ]] || show_and_fail $name "it was $(state "$job")"
done
cat first.out
grep -q "2 ranks, 2 per node, start by srun --mpi=" first.out || show_and_fail first "not by srun"
grep -q "lessons: no-limit: --no-limit-all-gathers" first.out || show_and_fail first "no run without the limit"
if grep -q "lessons: no-limit: " again.out; then show_and_fail again "a run that was done was made again"; fi
grep -q "2 ranks on 1 node" runs/lessons/lessons.md || fail "the page does not say 2 ranks on 1 node"

if [[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]]; then
    echo "-- pbs/lessons.pbs"
    printf '%s\n' "$(hostname)" >nodefile
    # The search for the largest models takes five times as long with the default of 768 MiB.
    code=0
    (
        cd /
        env MEMORY=320MiB PATH="$(dirname "$FSDP_MPIEXEC"):/usr/bin:/bin" OUT_DIR=pbs-lessons RANKS_PER_NODE=3 DEPTH=1 PBS_JOBID=7.server \
            PBS_JOBNAME=lessons PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" ARGS="--only 5" \
            bash "$FSDP_SOURCE/pbs/lessons.pbs"
    ) >pbs.out 2>&1 || code=$?
    cat pbs.out
    ((code == 0)) || fail "pbs/lessons.pbs ended with $code"
    grep -q "3 ranks on 1 node" pbs-lessons/lessons.md || fail "the page does not say 3 ranks on 1 node"
    grep -q "full-shard trains .* times the parameters of no-shard" pbs-lessons/lessons.md || fail "no largest models"
fi
echo "as expected"
