#!/usr/bin/env bash
# Runs slurm/mingpt.sh in a real, small Slurm: to completion; stopped by a signal, requeued and finished with the same
# losses; cancelled; started with the wrong srun --mpi.
set -euo pipefail
source "$(dirname "$0")/common.sh"

small_run
start_slurm
cd "$work"

# submit NAME STEPS [ARGUMENTS of sbatch]: prints the job's id.
submit() {
    RUN_NAME=$1 sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --time=10 --output="$work/$1.out" "${@:3}" \
        "$FSDP_SOURCE/slurm/mingpt.sh" --max-steps "$2" --save-every 5 --seed 3
}
show_and_fail() { cat "$work/$1.out"; fail "$2"; }

# finish JOB NAME: waits for the end of the job, which must succeed.
finish() {
    wait_for 300 ended "$1" || show_and_fail "$2" "job $2 is still $(state "$1")"
    [[ $(state "$1") == COMPLETED ]] || show_and_fail "$2" "job $2 ended as $(state "$1")"
}

echo "-- two tasks, to completion; then the same, stopped on the way"
for steps in 60 400 5000; do # more steps on a machine so fast that the signal comes too late
    finish "$(submit calm-$steps $steps)" "calm-$steps"
    job=$(FSDP_OPT_EXCLUDE_FILE=$work/excluded submit stopped-$steps $steps)
    wait_for 60 has_steps "stopped-$steps" 12 || show_and_fail "stopped-$steps" "no progress"
    first_node=$(squeue -h -j "$job" -o %N)
    echo "$first_node # as the program and users write" >excluded
    scancel -s USR1 "$job" # reaches the ranks, as --signal=USR1@120 does
    finish "$job" "stopped-$steps"
    if grep -q requeueing "stopped-$steps.out"; then break; fi
    echo "$steps steps were over before the signal came"
done
cat "stopped-$steps.out"
grep -q "requeueing" "stopped-$steps.out" || fail "the job was never stopped"
[[ $(scontrol show job "$job") == *Restarts=1* ]] || fail "not restarted once"
same_losses "calm-$steps" "stopped-$steps" --steps "$steps"
grep -q "the next start leaves out $first_node " "stopped-$steps.out" || fail "$first_node is not left out"
facts=$(scontrol show job "$job")
[[ $facts == *"ExcNodeList=$first_node"* && $facts != *"BatchHost=$first_node"* ]] || fail "the job was started on $first_node again: $facts"

echo "-- scancel: saved, and not requeued"
job=$(submit cancelled 1000000)
wait_for 60 has_steps cancelled 7 || show_and_fail cancelled "no progress"
scancel "$job"
wait_for 60 ended "$job" || show_and_fail cancelled "the job is $(state "$job") after scancel"
[[ $(state "$job") == CANCELLED ]] || show_and_fail cancelled "the job ended as $(state "$job")"
grep -q "before the time limit, at step .*: not requeued; submit again with RUN_NAME=cancelled to go on" cancelled.out ||
    show_and_fail cancelled "it does not say that it was not requeued"
[[ -e $OUT_DIR/cancelled/checkpoints/latest ]] || show_and_fail cancelled "no checkpoint was saved"

echo "-- the wrong srun --mpi"
job=$(SRUN_MPI=none submit wrong 40)
wait_for 60 ended "$job" || show_and_fail wrong "the job hangs"
cat wrong.out
[[ $(state "$job") == FAILED ]] || fail "two jobs of one rank each were not noticed"
grep -q -e '--mpi' wrong.out || fail "the message does not name srun --mpi"
