#!/usr/bin/env bash
# Runs pbs/mingpt.pbs, pbs/train.pbs, pbs/tokens.pbs and the chess chain in a real PBS, if one answers on this machine:
# deleted, rerun, stopped by the time limit and the walltime, as an array, cancelled. Variables:
#   FSDP_PBS_SHARED    a folder that this host and the execution hosts share      a new one in HOME
#   FSDP_PBS_OPTIONS   of qsub      -C "" -l select=1:ncpus=2 -l place=scatter -l walltime=00:20:00
#   FSDP_PBS_SITE      site file for pbs/train.pbs      two nodes of two cpus, or one node where only one is free
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
next_job() { cat "$@" | sed -n '/submitting again/{n;p}' | tail -n 1; } # FILE...: prints the job that was submitted last
end_chain() { # FILE...: deletes the job that was submitted last, until no other follows it
    local last
    last=$(next_job "$@")
    until over "$last"; do
        qdel "$last" 2>/dev/null || true
        sleep 1
        last=$(next_job "$@")
    done
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

echo "-- deleted at five moments of a walltime of one minute: none comes back; the end of the walltime: submitted again"
mkdir quick
cp "$FSDP_SOURCE/tests/cluster/stand_in.sh" quick/
cat >quick/fsdp-finetune <<'SH'
#!/bin/bash
if [[ $* == *--print-config* ]]; then exit; fi
source "$(dirname "$0")/stand_in.sh"
trap 'stop=1' TERM
while [[ -z ${stop:-} ]]; do
    sleep 0.2
    ((++step))
    case $name in
        beginning) ((SECONDS < 3)) ;;
        ending) ((SECONDS < 5)) || stop=1 ;;
        middle) ((SECONDS < 30)) ;;
        late) ((SECONDS < 50)) ;;
        last) ((SECONDS < 58)) ;;
    esac || delete=1
    if [[ $name == ending && -n ${stop:-} ]]; then delete=1; fi
    if [[ -n ${delete:-} && ! -e $out/$name/asked ]]; then
        : >"$out/$name/asked"
        qdel "$PBS_JOBID"
    fi
done
save
exit 85
SH
chmod +x quick/fsdp-finetune
for name in beginning ending middle late last whole; do
    FSDP_BIN=$shared/quick LAUNCHER=env submit $name '' mingpt.pbs -l walltime=00:01:00
done
answered() { grep -q "submitting again\|not submitted again" "$name".o* 2>/dev/null; }
for name in beginning ending middle late last whole; do
    wait_for 300 answered || show_and_fail "$name does not end"
    if [[ $name == whole ]] || grep -q "=>> PBS: job killed: walltime" "$name".o*; then
        says $name "submitting again"
        end_chain $name.o*
    else
        says $name "not submitted again; submit again with RUN_NAME=$name"
    fi
done
if grep -q "=>> PBS" beginning.o* ending.o* middle.o*; then show_and_fail "a walltime was over too early"; fi

echo "-- its time limit: submitted again, with the same values, until it is done"
export ODD=$'a  b, "c"\nd'
TIME_LIMIT=0:00:20 submit limit '--max-steps 1000000 --save-every 50 --seed 3' mingpt.pbs
resubmitted() { grep -q "submitting again" limit.o* 2>/dev/null; }
wait_for 300 resubmitted || show_and_fail "it was not submitted again"
second=$(next_job limit.o*)
jobs+=("$second")
wait_for 60 qstat -f "$second" >second.facts || show_and_fail "the second job is not known"
grep -qF "Resource_List.walltime" second.facts || show_and_fail "the second job has no walltime"
continued() { [[ $(cat limit.o* | grep -c "start by") -ge 2 ]]; }
wait_for 300 continued || show_and_fail "the second job does not start"
end_chain limit.o*

# general NAME STEPS OPTIONS...: sets job to pbs/train.pbs as run NAME, on the data `data`; its output goes to the folder NAME.
general() {
    mkdir -p "$1"
    (cd "$1" && RUN_NAME=$1 FSDP_SITE=${FSDP_PBS_SITE:-$shared/site.sh} MODEL=mingpt DATA=${data:-$DATA_DIR/train.h5} RANKS_PER_NODE=1 \
        bash "$FSDP_SOURCE/pbs/train.pbs" --num-layers 2 --num-heads 2 --embed-size 32 --max-steps "$2" --save-every 50 "${@:3}") \
        >submitted 2>&1 || skip "pbs/train.pbs is refused: $(<submitted) (see FSDP_PBS_SITE)"
    job=$(tail -n 1 submitted)
    jobs+=("$job")
}
times() { cat "$1"/*.o* 2>/dev/null | grep -cF -e "$2" || true; } # NAME TEXT: prints how often the jobs of this run say it
says_often() { (($(times "$1" "$2") >= $3)); }                     # NAME TEXT N
expect() {                                                         # SECONDS NAME TEXT N
    wait_for "$1" says_often "${@:2}" || { tail -n 40 "$2"/*.o* || true; fail "$2 does not say $4 times: $3"; }
}
free=$(pbsnodes -a 2>/dev/null | grep -c 'state = free' || true)
nodes=$((free > 1 ? 2 : 1))
cat >site.sh <<SH
: "\${NODES:=$nodes}" "\${CPUS:=2}" "\${WALLTIME:=00:20:00}"
SH
unset ARRAY STAGE CONTAINER SUBMIT TIME_LIMIT WALLTIME
for steps in 200 1000 5000 25000; do # more steps on a machine so fast that it is done before the stops
    echo "-- the general job, $steps steps on $nodes node(s): from copies on the nodes; as an array whose tasks stop at the time
   limit and go on as jobs of their own; rerun"
    STAGE="\$TMPDIR" general calm-$steps $steps --seed 3
    expect 400 calm-$steps "ended with code 0" 1
    expect 1 calm-$steps "1 of 1 files" 1
    expect 1 calm-$steps "on $nodes node(s)" 1
    ARRAY="seed=3,4" TIME_LIMIT=0:00:15 general sweep-$steps $steps
    expect 600 sweep-$steps "ended with code 0" 2
    for seed in 3 4; do
        grep -q "\"seed\": \"$seed\"" "runs/sweep-$steps/seed-$seed/job.json" || fail "the run of seed $seed has another one"
    done
    same_losses calm-$steps sweep-$steps/seed-3 --steps $steps
    general rerun-$steps $steps --seed 3
    wait_for 300 has_steps rerun-$steps 12 || { tail -n 40 rerun-$steps/*.o*; fail "the run to be rerun makes no progress"; }
    if ! qrerun "$job" 2>qrerun.err; then echo "qrerun is refused here ($(<qrerun.err)): left out"; fi
    expect 400 rerun-$steps "ended with code 0" 1
    same_losses calm-$steps rerun-$steps --steps $steps
    if says_often sweep-$steps "submitting again" 2 && { [[ -s qrerun.err ]] || says_often rerun-$steps "start by" 2; }; then break; fi
    [[ $steps != 25000 ]] || fail "no job was stopped"
done

echo "-- preferences: an objective and a head, as docs/preferences.md and docs/heads.md submit them"
for objective in "--objective dpo" "--head reward"; do
    name=prefers${objective//[^a-z]/}
    # shellcheck disable=SC2086 # two words
    data=$FSDP_SOURCE/data/preferences/chess.jsonl general "$name" 3 --seq-len 64 $objective
    expect 300 "$name" "ended with code 0" 1
    expect 1 "$name" "preferences of up to" 1
done

echo "-- the general job at the end of its walltime: saved in the seconds that PBS gives, submitted again"
WALLTIME=00:02:00 general walltime 100000000
expect 400 walltime "submitting again" 1
jobs+=("$(next_job walltime/*.o*)")
expect 1 walltime "leaves no minute before the last 180 s" 1
expect 300 walltime "start by" 2
(($(times walltime "from step 0 ") == 1)) || fail "the second job does not go on: $(grep "from step" walltime/*.o*)"
end_chain walltime/*.o* # well before the end of its walltime

echo "-- tokens by the processes of a job, and by the jobs of an array"
for _ in {1..40}; do cat "$FSDP_SOURCE/data/chess/train.jsonl"; done >games.jsonl
export INPUT=games.jsonl TOKENIZER=gpt2
"$FSDP_BIN/fsdp-download" tokens --input games.jsonl --tokenizer gpt2 --seq-len "$SEQ_LEN" --output alone.h5 --quiet >/dev/null
OUTPUT=together.h5 submit together "--piece-size 1" tokens.pbs
wait_for 300 over "$job" || show_and_fail "the job of two processes does not end"
OUTPUT=array.h5 submit array "--piece-size 1" tokens.pbs -J 0-1
wait_for 300 over "$job" || show_and_fail "the array does not end"
for name in together array; do
    cmp alone.h5 $name.h5 || show_and_fail "$name.h5 has other bytes than that of one process"
done
(($(cat array.o* | grep -cE "written in|by this process|nothing is left") >= 2)) || show_and_fail "a job of the array does not say how it ended"

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
