#!/usr/bin/env bash
# Runs slurm/chess_pipeline.sh in a real, small Slurm: downloads a tiny model shaped like CodeLlama and the shipped games
# from a hub on this machine, fine-tunes until a signal stops the job once, is requeued, finishes, converts and
# evaluates. A second start finds nothing left to do. FSDP_ALL=1: the signal is the time limit's own.
set -euo pipefail
source "$(dirname "$0")/common.sh"

if ! "$FSDP_BIN/fsdp-download" tokens --input "$FSDP_SOURCE/data/chess/validation.parquet" --tokenizer gpt2 --max-rows 1 \
    --output "$work/one.h5" >"$work/one.log" 2>&1; then
    grep -q "is a Parquet file, and the support for these is missing" "$work/one.log" && skip "$(<"$work/one.log")"
    fail "$(<"$work/one.log")"
fi
start_slurm
load_programs
cd "$work"
unset "${!HF_@}" "${!SLURM_JOB@}" MODEL DATA VAL_DATA http_proxy all_proxy
"$FSDP_PYTHON" "$here/tiny_codellama.py" hub "$work/url" >hub.log 2>&1 &
hub=$!
stop_hub() { kill "$hub" && wait "$hub"; }
cleanup+=(stop_hub)
wait_for 30 test -s url || { cat hub.log; fail "the hub did not start"; }
export FSDP_BIN OUT_DIR=$work/runs RUN_NAME=chess DEVICE=cpu MAX_SEQ_LENGTH=128 LEARNING_RATE=3e-3 TOTAL_BATCH_SIZE=16 BATCH_SIZE_PER_DEVICE=4 EVAL_ARGS="--max-rows 64"
HF_HOME=$work/hf HF_ENDPOINT=$(<url)
export HF_HOME HF_ENDPOINT
pipeline=$FSDP_SOURCE/slurm/chess_pipeline.sh
show_and_fail() {
    cat ./*.out
    fail "$1"
}
job_of() { sed -nE "s/^$2 +([0-9]+).*/\1/p" "$1"; } # OUTPUT STAGE

echo "-- the chain"
# More steps than fit into the first start. The plan is read at each start.
echo "max_training_steps=100000" >plan.ini
export PLAN=$work/plan.ini SUBMIT=--cpus-per-task=1 SUBMIT_FINETUNE="--time=10 --signal=USR1@40"
if [[ -n ${FSDP_ALL:-} ]]; then SUBMIT_FINETUNE="--time=1 --signal=USR1@40"; fi # 10 to 30 s after the start
arguments=(--save-every 50 --lr-schedule constant --warmup_steps 20)
bash "$pipeline" --dry-run "${arguments[@]}" >dry.out || show_and_fail "the dry run ended with $?"
grep -q "would be submitted" dry.out || show_and_fail "the dry run does not say what it would do"
[[ -z $(squeue -h) && ! -e $HF_HOME ]] || show_and_fail "the dry run did something"
bash "$pipeline" "${arguments[@]}" >first.out 2>&1 || show_and_fail "the pipeline ended with $?"
if [[ ! -x $FSDP_BIN/fsdp-bf16check ]]; then
    grep -q "fsdp-bf16check: not in FSDP_BIN, stage left out" first.out || show_and_fail "nothing about fsdp-bf16check"
fi
finetune=$(job_of first.out finetune) convert=$(job_of first.out convert) eval=$(job_of first.out eval)
[[ -n $finetune && -n $convert && -n $eval ]] || show_and_fail "not all stages were submitted"

if [[ -z ${FSDP_ALL:-} ]]; then
    wait_for 300 has_steps chess 12 || show_and_fail "the fine-tune makes no progress"
    scancel -s USR1 "$finetune" # reaches the ranks, as the time limit's signal does
fi
requeued_or_ended() { ended "$finetune" || [[ $(scontrol show job "$finetune") == *Restarts=1* ]]; }
wait_for 120 requeued_or_ended || show_and_fail "the signal did not stop the fine-tune"
[[ $(scontrol show job "$finetune") == *Restarts=1* ]] || show_and_fail "the fine-tune was not requeued"
stopped=$(readlink "$OUT_DIR/chess/checkpoints/latest")
stopped=$((10#${stopped#step-}))
steps=$((stopped + 50 > 150 ? stopped + 50 : 150))
echo "max_training_steps=$steps" >plan.ini
scontrol update JobId="$finetune" TimeLimit=10
[[ $(state "$convert") == PENDING ]] || show_and_fail "the conversion did not wait for the fine-tune's second start"
wait_for 300 ended "$eval" || show_and_fail "the last job is still $(state "$eval")"
for job in "$finetune" "$convert" "$eval"; do
    [[ $(state "$job") == COMPLETED ]] || show_and_fail "job $job ended as $(state "$job")"
done
[[ $(scontrol show job "$finetune") == *"Restarts=1 "* ]] || show_and_fail "not restarted once"
cat chess_finetune-"$finetune".out
run=$OUT_DIR/$RUN_NAME

grep -q "from step $stopped on" chess_finetune-"$finetune".out || show_and_fail "it did not go on from step $stopped"

echo "-- what came of it"
same_losses "$RUN_NAME" "$RUN_NAME" --steps "$steps" # each step is there exactly once
"$FSDP_PYTHON" - "$run" <<'PY' || fail "the losses are not as expected"
import json, sys
run = sys.argv[1]
losses = [r["loss"] for r in map(json.loads, open(run + "/metrics.jsonl")) if "loss" in r]
report = json.load(open(run + "/eval.json"))
evaluated = report["loss"]
assert report["chess"]["data"].endswith("validation.jsonl"), report
last = sum(losses[-20:]) / 20
print(f"training {losses[0]:.3f} -> {last:.3f}, evaluation of the converted model {evaluated:.3f}")
# An untrained model's loss is ln 1016 = 6.92. Training must at least learn which letters and digits moves consist of.
assert 6.7 < losses[0] < 7.2 and last < 2, "training"
assert abs(evaluated - last) < 0.3, "evaluation"
PY
[[ -s $run/hf/config.json && -s $run/hf/tokenizer.model ]] || fail "no directory for transformers"

echo "-- once more: everything holds"
bash "$pipeline" "${arguments[@]}" >second.out 2>&1 || show_and_fail "the second start ended with $?"
grep -q "everything holds" second.out || show_and_fail "the second start did something"
if grep -q "fetching" second.out; then show_and_fail "the second start downloaded something"; fi
[[ -z $(squeue -h) ]] || show_and_fail "the second start submitted something"

echo "-- a result that is gone is made again, alone"
rm -r "$run/eval.json"
bash "$pipeline" "${arguments[@]}" >third.out 2>&1 || show_and_fail "the third start ended with $?"
[[ $(squeue -h -o %j) == chess_eval ]] || show_and_fail "not the evaluation alone was submitted"
wait_for 60 ended "$(job_of third.out eval)" || show_and_fail "the evaluation does not end"
[[ -s $run/eval.json ]] || show_and_fail "it was not made again"

echo "-- missing data are told at once, whatever stages come first; a stage that fails takes those after it along"
if RUN_NAME=new DATA=$work/gone.h5 DOWNLOAD=no bash "$pipeline" >fourth.out 2>&1; then show_and_fail "missing data were not noticed"; fi
grep -q "training data $work/gone.h5" fourth.out || show_and_fail "the missing data are not named"
[[ -z $(squeue -h) ]] || show_and_fail "something was submitted without data"
MODEL=nobody/nothing DOWNLOAD=sbatch RUN_NAME=none bash "$pipeline" >fifth.out 2>&1 || show_and_fail "the fifth start ended with $?"
wait_for 60 ended "$(job_of fifth.out eval)" || show_and_fail "the chain waits for a download that failed"
[[ $(state "$(job_of fifth.out download)") == FAILED && $(state "$(job_of fifth.out finetune)") == CANCELLED ]] ||
    show_and_fail "the fine-tune was not cancelled"

echo "-- --cancel ends the whole chain; nothing is requeued"
echo "max_training_steps=1000000" >plan.ini
export RUN_NAME=cancelled SUBMIT_FINETUNE=--time=60
bash "$pipeline" "${arguments[@]}" >sixth.out 2>&1 || show_and_fail "the sixth start ended with $?"
if bash "$pipeline" "${arguments[@]}" >seventh.out 2>&1; then show_and_fail "a second chain was started beside the first"; fi
grep -q "is under way" seventh.out || show_and_fail "the second start does not say why it does nothing"
wait_for 300 has_steps cancelled 5 || show_and_fail "the fine-tune to be cancelled makes no progress"
bash "$pipeline" --cancel >cancel.out 2>&1 || show_and_fail "--cancel ended with $?"
cat cancel.out
[[ -z $(squeue -h) ]] || show_and_fail "something is left: $(squeue -h)"
[[ $(state "$(job_of sixth.out finetune)") == CANCELLED ]] || show_and_fail "the fine-tune is $(state "$(job_of sixth.out finetune)")"
