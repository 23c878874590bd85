#!/usr/bin/env bash
# Runs pbs/mingpt.pbs in the environment of a PBS job, with hydra's mpiexec: to completion; stopped by SIGTERM, submitted
# again and finished with the same losses.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]] || skip "this MPI's mpiexec is not hydra's"
small_run
cd "$work"
# PBS lists a host once per MPI process that select requests.
printf '%s\n%s\n' "$(hostname)" "$(hostname)" >nodefile
# The walltime is over, so the script takes SIGTERM as the end of the walltime.
mkdir tools
printf '#!/bin/sh\necho "    Resource_List.walltime = 00:00:01"\n' >tools/qstat
chmod +x tools/qstat

# pbs_job NAME STEPS: replaces itself by the job NAME, run as PBS does, from another folder; output goes to NAME.out.
pbs_job() {
    cd /
    exec env -i HOME="$HOME" PATH="$work/tools:$(dirname "$FSDP_MPIEXEC"):/usr/bin:/bin" \
        FSDP_BIN="$FSDP_BIN" DATA_DIR="$DATA_DIR" OUT_DIR="$OUT_DIR" DEVICE="$DEVICE" PRECISION="$PRECISION" \
        NUM_LAYERS="$NUM_LAYERS" NUM_HEADS="$NUM_HEADS" EMBED_SIZE="$EMBED_SIZE" SEQ_LEN="$SEQ_LEN" \
        BATCH_SIZE="$BATCH_SIZE" SAVE_INTERVAL_MINUTES= RANKS_PER_NODE=2 DEPTH=1 RUN_NAME="$1" \
        PBS_JOBID=1234.server PBS_JOBNAME=mingpt PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" OMP_NUM_THREADS=64 \
        ARGS="--max-steps $2 --save-every 5 --seed 3" RESUBMIT="bash $FSDP_SOURCE/pbs/mingpt.pbs" \
        bash "$FSDP_SOURCE/pbs/mingpt.pbs" >>"$work/$1.out" 2>&1
}
show_and_fail() {
    cat "$work/$1.out"
    fail "job $1 $2"
}
children() { cat "/proc/$1/task/$1/children" 2>/dev/null || true; }

for steps in 60 400 5000; do # more steps on a machine so fast that the signal comes too late
    (pbs_job "calm-$steps" "$steps") || show_and_fail "calm-$steps" "ended with $?"
    pbs_job "stopped-$steps" "$steps" &
    job=$!
    wait_for 60 has_steps "stopped-$steps" 12 || show_and_fail "stopped-$steps" "makes no progress"
    # PBS tells why in the job's output, and signals every process of the job: here the script and its mpiexec, which passes the
    # signal on.
    echo "=>> PBS: job killed: walltime 2 exceeded limit 1" >>"stopped-$steps.out"
    # shellcheck disable=SC2046 # one word per process
    kill -TERM "$job" $(children "$job") 2>/dev/null || true
    wait "$job" || show_and_fail "stopped-$steps" "ended with $?"
    if grep -q "submitting again" "stopped-$steps.out"; then break; fi
    echo "$steps steps were over before the signal came"
done
cat "stopped-$steps.out"
grep -q "submitting again" "stopped-$steps.out" || fail "the job was never stopped"
grep -q "2 ranks" "stopped-$steps.out" || fail "a host that is listed twice was counted twice"
same_losses "calm-$steps" "stopped-$steps" --steps "$steps"
