#!/usr/bin/env bash
# Runs pbs/mingpt.pbs and the chess chain in a real PBS, if one answers on this machine: deleted, rerun, stopped by the
# time limit, cancelled. Variables:
#   FSDP_PBS_SHARED    a folder that this host and the execution hosts share      a new one in HOME
#   FSDP_PBS_OPTIONS   of qsub      -C "" -l select=1:ncpus=2 -l place=scatter -l walltime=00:20:00
set -euo pipefail
source "$(dirname "$0")/common.sh"

command -v qsub >/dev/null || PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin
command -v qsub >/dev/null || skip "no qsub on PATH or in PBS_EXEC/bin: no PBS on this machine"
version=$(timeout 20 qsub --version 2>&1) || skip "qsub --version fails: $version"
[[ $version == *pbs_version* ]] || skip "this qsub is not PBS's: $version"
answer=$(timeout 20 qstat -B 2>&1) || skip "no PBS server answers: $answer"
shared=$(mktemp -d "${FSDP_PBS_SHARED:-$HOME}/fsdp-test.XXXXXX")
jobs=()
remove_shared() {
    qdel "${jobs[@]}" 2>/dev/null || true
    RUN_NAME=chain OUT_DIR=$shared/runs bash "$FSDP_SOURCE/pbs/chess_pipeline.sh" --cancel >/dev/null 2>&1 || true
    sleep 2
    rm -rf "$shared"
}
cleanup+=(remove_shared)
cd "$shared"
work=$shared
small_run
unset "${!HF_@}" MODEL DATA VAL_DATA PLAN ARGS
export FSDP_HOME=$FSDP_SOURCE RANKS_PER_NODE=2 DEPTH=1
source "$FSDP_SOURCE/scripts/jobs/common.sh"
split_words "${FSDP_PBS_OPTIONS:--C \"\" -l select=1:ncpus=2 -l place=scatter -l walltime=00:20:00}"
options_of_qsub=("${words_of[@]}")

show_and_fail() {
    tail -n 30 ./*.o[0-9]* 2>/dev/null || true
    fail "$1"
}
over() { [[ $(qstat -x -f "$1" 2>/dev/null) =~ job_state\ =\ F ]] || ! qstat "$1" >/dev/null 2>&1; }
submit() { # NAME ARGS SCRIPT ARGUMENTS of qsub: sets job
    job=$(RUN_NAME=$1 ARGS=$2 qsub "${options_of_qsub[@]}" -N "$1" -j oe -k doe -V "${@:4}" "$FSDP_SOURCE/pbs/$3" 2>"$shared/qsub.err") ||
        skip "qsub refuses: $(<"$shared/qsub.err") (see FSDP_PBS_OPTIONS)"
    jobs+=("$job")
}
says() { grep -qF -e "$2" "$1".o* || show_and_fail "$1 does not say: $2"; } # NAME TEXT

echo "-- deleted and rerun: saved, not submitted again"
for name in deleted rerun; do
    submit $name "--max-steps 1000000 --save-every 50" mingpt.pbs
    wait_for 300 has_steps $name 3 || show_and_fail "$name makes no progress"
    if [[ $name == deleted ]]; then qdel "$job"; elif ! qrerun "$job" 2>qrerun.err; then
        echo "qrerun is refused here ($(<qrerun.err)): left out"
        qdel "$job"
        continue
    fi
    signalled() { grep -q "not submitted again; submit again with RUN_NAME=$name" "$name".o* 2>/dev/null; }
    wait_for 120 signalled || show_and_fail "$name does not say that it was not submitted again"
    [[ -e runs/$name/checkpoints/latest ]] || show_and_fail "$name saved nothing"
    qdel "$job" 2>/dev/null || true
    ended() { over "$job"; }
    wait_for 120 ended || show_and_fail "job $job is still there"
done

echo "-- its time limit: submitted again, with the same values, until it is done"
export ODD=$'a  b, "c"\nd'
TIME_LIMIT=0:00:20 submit limit '--max-steps 1000000 --save-every 50 --seed 3' mingpt.pbs
resubmitted() { grep -q "submitting again" limit.o* 2>/dev/null; }
wait_for 300 resubmitted || show_and_fail "it was not submitted again"
second=$(sed -n '/submitting again/,$p' limit.o* | sed -n '2p')
jobs+=("$second")
wait_for 60 qstat -f "$second" >second.facts || show_and_fail "the second job is not known"
grep -qF "Resource_List.walltime" second.facts || show_and_fail "the second job has no walltime"
continued() { [[ $(cat limit.o* | grep -c "start by") -ge 2 ]]; }
wait_for 300 continued || show_and_fail "the second job does not start"
while ! over "$second"; do
    qdel "$second" 2>/dev/null || true
    second=$(cat limit.o* | sed -n '/submitting again/{n;p}' | tail -n 1)
    sleep 1
done

echo "-- the chess chain, cancelled"
snapshot=$("$FSDP_PYTHON" "$here/tiny_codellama.py" cache "$shared/hf/hub")
export MODEL=$snapshot DATA=$FSDP_SOURCE/data/chess/train.jsonl DOWNLOAD=no LEARNING_RATE=3e-3 MAX_SEQ_LENGTH=128 TOTAL_BATCH_SIZE=16
PLAN=$shared/plan.ini
echo "max_training_steps=1000000" >"$PLAN"
SUBMIT=$(join_words "${options_of_qsub[@]}" -j oe -k doe)
export PLAN SUBMIT RUN_NAME=chain TIME_LIMIT=0:00:20
unset ARGS
bash "$FSDP_SOURCE/pbs/chess_pipeline.sh" --save-every 50 >chain.out 2>&1 || { cat chain.out; fail "the chain was not submitted"; }
cat chain.out
first=$(sed -n 's/^finetune //p' runs/chain/chain)
moved_on() { [[ $(sed -n 's/^finetune //p' runs/chain/chain) != "$first" ]]; }
wait_for 400 moved_on || show_and_fail "the fine-tune does not go on as another job"
bash "$FSDP_SOURCE/pbs/chess_pipeline.sh" --cancel >cancel.out 2>&1 || { cat cancel.out; fail "--cancel fails"; }
cat cancel.out
left() { qselect -u "$(id -un)" -N "$1" -s QRHEW; }
[[ -z $(left chess_finetune)$(left chess_convert)$(left chess_eval) ]] || show_and_fail "the chain is still there"
echo "as expected"
