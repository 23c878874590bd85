#!/usr/bin/env bash
# Runs the chess scripts for PBS in the environment of a PBS job, with hydra's mpiexec and a tiny model shaped like
# CodeLlama: the fine-tune is stopped by SIGTERM, submitted again and finished with the same losses; then the later stages.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]] || skip "this MPI's mpiexec is not hydra's"
load_programs
cd "$work"
"$FSDP_PYTHON" "$here/tiny_codellama.py" cache "$work/hf/hub" >/dev/null
printf '%s\n%s\n' "$(hostname)" "$(hostname)" >nodefile
# The walltime is over, so the scripts take SIGTERM as the end of the walltime.
mkdir tools
printf '#!/bin/sh\necho "    Resource_List.walltime = 00:00:01"\n' >tools/qstat
chmod +x tools/qstat

# pbs_job NAME SCRIPT VARIABLE=VALUE...: replaces itself by a job of the run NAME, as PBS runs it; output goes to NAME.out.
pbs_job() {
    cd /
    exec env -i HOME="$HOME" PATH="$work/tools:$(dirname "$FSDP_MPIEXEC"):/usr/bin:/bin" FSDP_BIN="$FSDP_BIN" \
        FSDP_LOADED_PROGRAMS="${FSDP_LOADED_PROGRAMS:-}" HF_HOME="$work/hf" \
        MODEL=tiny/CodeLlama DATA="$FSDP_SOURCE/data/chess/train.jsonl" OUT_DIR="$work/runs" RUN_NAME="$1" DEVICE=cpu \
        LEARNING_RATE=3e-3 MAX_SEQ_LENGTH=128 TOTAL_BATCH_SIZE=4 SAVE_FINAL_HF= RANKS_PER_NODE=2 DEPTH=1 OMP_NUM_THREADS=64 \
        PBS_JOBID=1234.server PBS_JOBNAME=chess PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" \
        ARGS="--save-every 5" RESUBMIT="bash $FSDP_SOURCE/pbs/chess_finetune.pbs" "${@:3}" bash "$FSDP_SOURCE/pbs/$2" >>"$work/$1.out" 2>&1
}
show_and_fail() {
    cat "$work/$1.out"
    fail "job $1 $2"
}
children() { cat "/proc/$1/task/$1/children" 2>/dev/null || true; }

for steps in 60 300 1500; do # more steps on a machine so fast that the signal comes too late
    (pbs_job calm-$steps chess_finetune.pbs MAX_TRAINING_STEPS=$steps) || show_and_fail calm-$steps "ended with $?"
    pbs_job stopped-$steps chess_finetune.pbs MAX_TRAINING_STEPS=$steps &
    job=$!
    wait_for 60 has_steps stopped-$steps 7 || show_and_fail stopped-$steps "makes no progress"
    echo "=>> PBS: job killed: walltime 2 exceeded limit 1" >>stopped-$steps.out # as PBS does before its signal
    # PBS signals every process of the job: here the script and its mpiexec, which passes the signal on.
    # shellcheck disable=SC2046 # one word per process
    kill -TERM "$job" $(children "$job") 2>/dev/null || true
    wait "$job" || show_and_fail stopped-$steps "ended with $?"
    if grep -q "submitting again" stopped-$steps.out; then break; fi
    echo "$steps steps were over before the signal came"
done
cat stopped-$steps.out
grep -q "submitting again" stopped-$steps.out || fail "the job was never stopped"
grep -q "2 ranks" stopped-$steps.out || fail "a host that is listed twice was counted twice"
same_losses calm-$steps stopped-$steps --steps $steps

for stage in convert eval; do
    (pbs_job stopped-$steps chess_pipeline.sh MAX_TRAINING_STEPS=$steps CHESS_STAGE=$stage) || show_and_fail stopped-$steps "the stage $stage ended with $?"
done
"$FSDP_PYTHON" -c 'import json, sys; loss = json.load(open(sys.argv[1]))["loss"]; print("loss", loss); assert loss < 5, loss' \
    "$work/runs/stopped-$steps/eval.json" || fail "a model that begins at ln 1016 = 6.9 has learned nothing"
