#!/usr/bin/env bash
# Runs slurm/train.sh in a real, small Slurm, started with bash and a site file: to completion; in a container (a stand-in for
# apptainer) from copies on the nodes, stopped by a signal, requeued and finished with the same losses; as an array; on preferences; with --export.
set -euo pipefail
source "$(dirname "$0")/common.sh"

start_slurm
load_programs
cd "$work"
export FSDP_BIN OUT_DIR=$work/runs FSDP_SITE=$work/site.sh MODEL=mingpt DATA=$FSDP_SOURCE/data/shakespeare/train.h5 DEVICE=cpu
unset STAGE CONTAINER ARRAY PLAN
cat >site.sh <<SH
: "\${ACCOUNT:=physics}" "\${PARTITION:=gpu}" "\${GPUS:=2}" "\${CONSTRAINT:=gpu40}" "\${NODES:=1}" "\${WALLTIME:=10:00}"
: "\${SUBMIT:=--cpus-per-task=1 --output=$work/%x-%j.out}"
PATH=$work/tools:\$PATH
SH
mkdir tools image disk
ln -s "$FSDP_BIN" image/bin
# The image is a folder here.
cat >tools/apptainer <<'SH'
#!/bin/bash
while [[ $1 != "$CONTAINER" ]]; do shift; done
shift
exec "$CONTAINER/bin/$@"
SH
chmod +x tools/apptainer

submit() { # NAME STEPS: sets job; saves every `every` steps
    RUN_NAME=$1 bash "$FSDP_SOURCE/slurm/train.sh" --num-layers 2 --num-heads 2 --embed-size 32 --seq-len 32 --batch-size 2 --max-steps "$2" \
        --seed 3 --save-every "${every:-5}" "${@:3}" >submitted || { cat submitted; fail "slurm/train.sh gave $?"; }
    job=$(sed -n 's/^Submitted batch job //p' submitted)
}
show_and_fail() { tail -n 40 train-*.out; fail "$1"; }
finish() { # NAME
    wait_for 300 ended "$job" || show_and_fail "job $1 is still $(state "$job")"
    [[ $(state "$job") == COMPLETED ]] || show_and_fail "job $1 ended as $(state "$job")"
}

for steps in 60 400 5000; do # more steps on a machine so fast that the signal comes too late
    submit "calm-$steps" $steps
    [[ $(scontrol show job "$job") == *"Features=gpu40"* ]] || fail "the site's constraint was not asked for"
    finish calm
    CONTAINER=$work/image STAGE=$work/disk submit "stopped-$steps" $steps
    wait_for 60 has_steps "stopped-$steps" 12 || show_and_fail "no progress"
    scancel -s USR1 "$job"
    finish stopped
    if grep -q requeueing "train-$job.out"; then break; fi
done
same_losses "calm-$steps" "stopped-$steps" --steps $steps
for words in "1 of 1 files, [0-9]* MiB, copied to $work/disk" "all 1 files are in $work/disk" "step [0-9]*, requeueing"; do
    grep -q "$words" "train-$job.out" || show_and_fail "it does not say: $words"
done
"$FSDP_PYTHON" - "$OUT_DIR/stopped-$steps/checkpoints/latest/run.json" "$DATA" <<'PY' || show_and_fail "the checkpoint names the copy"
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    named = json.load(file)["options"]["train-data"]
sys.exit(named != sys.argv[2])
PY

ARRAY="lr=1e-3,1e-2" submit sweep 2
over() { [[ -z $(squeue -h -j "$job" 2>/dev/null) ]]; }
wait_for 120 over || show_and_fail "the array is still there"
for lr in 1e-3 1e-2; do
    wait_for 60 has_steps "sweep/lr-$lr" 2 || show_and_fail "no run with --lr $lr"
    grep -q "\"lr\": \"$lr\"" "$OUT_DIR/sweep/lr-$lr/job.json" || fail "the run of --lr $lr has another one"
done
# The last task of an array has the array's number: it requeues itself alone.
every=100 ARRAY="lr=1e-3,1e-2" submit tasks $((10 * steps))
wait_for 60 has_steps tasks/lr-1e-2 12 || show_and_fail "no progress of the array's last task"
scancel -s USR1 "${job}_1"
wait_for 300 over || show_and_fail "the array is still there"
for task in 0 1; do
    [[ $(scontrol show job "${job}_$task") == *Restarts=$task* ]] || show_and_fail "task $task was not started $((task + 1)) times"
    [[ $(state "${job}_$task") == COMPLETED ]] || show_and_fail "task $task ended as $(state "${job}_$task")"
done

# docs/preferences.md and docs/heads.md, on a cluster: the job takes the objective and the head as it takes any option.
for objective in "--objective dpo" "--head reward"; do
    # shellcheck disable=SC2086 # two words
    DATA=$FSDP_SOURCE/data/preferences/chess.jsonl every=2 submit "prefers${objective//[^a-z]/}" 3 $objective
    finish "$objective"
    grep -q "preferences of up to" "train-$job.out" || show_and_fail "no preferences: $objective"
done

# Variables go along, whatever SBATCH_EXPORT says; a job that has next to none of them gives its own to the ranks.
LR=2e-3 SBATCH_EXPORT=NONE submit exported 2
finish exported
grep -q '"lr": "2e-3"' "$OUT_DIR/exported/job.json" || show_and_fail "LR did not reach the job"
job=$(sbatch --parsable --export=FSDP_BIN="$FSDP_BIN",FSDP_LOADED_PROGRAMS="${FSDP_LOADED_PROGRAMS:-}",FSDP_SITE=,RUN_NAME=alone,HOME="$HOME" --ntasks=2 \
    --ntasks-per-node=2 --cpus-per-task=1 --output="$work/train-%j.out" "$FSDP_SOURCE/slurm/train.sh" --model mingpt --train-data "$DATA" --device cpu \
    --num-layers 2 --num-heads 2 --embed-size 32 --seq-len 32 --batch-size 2 --max-steps 2 --no-save)
finish alone
grep -q "2 ranks on 1 node .* 1 thread per rank" "train-$job.out" || show_and_fail "OMP_NUM_THREADS did not reach the ranks"
echo "as expected"
