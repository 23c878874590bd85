#!/usr/bin/env bash
# Runs slurm/bf16check.sh in a real, small Slurm and pbs/bf16check.pbs in the environment of a PBS job; tries the wrong
# srun --mpi; a failed job keeps the dependent job from starting.
set -euo pipefail
source "$(dirname "$0")/common.sh"

start_slurm
cd "$work"
unset "${!SLURM_JOB@}" EXCLUDE_FILE
export FSDP_BIN DEVICE=cpu SIZE_MB=1
script=$FSDP_SOURCE/slurm/bf16check.sh

# submit NAME TASKS [ARGUMENTS of sbatch]: prints the job's id.
submit() { sbatch --parsable --nodes=1 --ntasks-per-node="$2" --cpus-per-task=1 --output="$work/$1.out" "${@:3}" "$script" --quick; }
show_and_fail() { cat "$work/$1.out" || true; fail "$2"; }
# exits NAME JOB CODE: checks the job's exit code
exits() {
    wait_for 120 ended "$2" || show_and_fail "$1" "job $1 is still $(state "$2")"
    scontrol show job "$2" >"$1.job"
    grep -q "ExitCode=$3:0" "$1.job" || { cat "$1.job"; show_and_fail "$1" "job $1 did not end with $3"; }
}
native=3
if grep -qw avx512_bf16 /proc/cpuinfo; then native=0; fi

for tasks in 1 2 4; do
    echo "-- $tasks tasks under srun"
    exits srun-$tasks "$(submit srun-$tasks $tasks)" $native
    cat srun-$tasks.out
    ((tasks == 1)) || grep -q "over $tasks ranks: exact" srun-$tasks.out || show_and_fail srun-$tasks "no exact all-reduce over $tasks ranks"
    # The report names hosts as Slurm does, so that users can pass the names back to Slurm.
    node=$(sed -nE 's/^ *NodeList=(.*)/\1/p' srun-$tasks.job)
    grep -qE "^ +0 +$node " srun-$tasks.out || show_and_fail srun-$tasks "the host is not called $node"
    [[ -e bf16check-exclude ]] || fail "no bf16check-exclude"
    # The file has at most one line, and sbatch --exclude accepts it.
    (($(wc -l <bf16check-exclude) <= 1)) || fail "bf16check-exclude has several lines"
done
echo toy2 >bf16check-exclude
exits excluded "$(submit excluded 1 --exclude="$(cat bf16check-exclude)")" $native
grep -q 'NodeList=toy1' excluded.job || { cat excluded.job; fail "toy2 was not left out"; }

echo "-- the wrong srun --mpi: N jobs of size 1"
job=$(SRUN_MPI=none submit wrong 2)
exits wrong "$job" 4
cat wrong.out
grep -q -e '--mpi=pmi2' wrong.out || show_and_fail wrong "the message does not name srun --mpi=pmi2"

echo "-- a check that says no holds back what depends on it"
job=$(DEVICE=cuda submit no 2)
exits no "$job" 3
grep -q "bf16 is        absent" no.out || show_and_fail no "not absent"
[[ -s bf16check-exclude ]] || fail "no host is to be excluded"
next=$(sbatch --parsable --dependency=afterok:"$job" --kill-on-invalid-dep=yes --output=/dev/null --wrap true)
wait_for 60 ended "$next" || fail "the dependent job is still $(state "$next")"
[[ $(state "$next") == CANCELLED ]] || fail "the dependent job was $(state "$next")"

if [[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]]; then
    echo "-- pbs/bf16check.pbs"
    printf '%s\n%s\n' "$(hostname)" "$(hostname)" >nodefile
    code=0
    (
        cd /
        env -i HOME="$HOME" PATH="$(dirname "$FSDP_MPIEXEC"):/usr/bin:/bin" FSDP_BIN="$FSDP_BIN" DEVICE=cpu \
            EXCLUDE_FILE=pbs-exclude RANKS_PER_NODE=3 DEPTH=1 PBS_JOBID=7.server PBS_JOBNAME=bf16check \
            PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" ARGS="--quick --size-mb 1" \
            bash "$FSDP_SOURCE/pbs/bf16check.pbs"
    ) >pbs.out 2>&1 || code=$?
    cat pbs.out
    ((code == native)) || fail "pbs/bf16check.pbs ended with $code"
    grep -q "over 3 ranks: exact" pbs.out || fail "no all-reduce over 3 ranks"
    [[ -e pbs-exclude ]] || fail "no pbs-exclude in the folder of submission"
fi
echo "as expected"
