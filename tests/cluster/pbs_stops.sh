#!/usr/bin/env bash
# Runs pbs/mingpt.pbs under toy_pbs.py, which behaves as a real OpenPBS was seen to behave, with a stand-in for the program:
# checks which stops submit the job again, and that the new job has the options of the old one.
set -euo pipefail
source "$(dirname "$0")/common.sh"

cd "$work"
export HOME=$work TOY_PBS_DIR=$work/pbs
"$FSDP_PYTHON" "$here/toy_pbs.py" install "$TOY_PBS_DIR"
PATH=$PATH:$TOY_PBS_DIR/bin # last, as PBS's profile does
unset "${!SLURM_@}" "${!PBS_@}"
kill_jobs() { wait_for 60 all_killed; }
all_killed() { # also kills jobs that were submitted again
    local file all=0
    for file in $(grep -LF '"state": "F"' "$TOY_PBS_DIR"/*.json); do
        "$TOY_PBS_DIR/bin/qdel" "$(basename "$file" .json).toy" 2>/dev/null || true
        all=1
    done
    return $all
}
cleanup+=(kill_jobs)

# Stand-in programs: one step per 0.1 s from the newest checkpoint; on a signal or the time limit they save and end with 85.
mkdir bin
cp "$FSDP_SOURCE/tests/cluster/stand_in.sh" bin/
cat >bin/fsdp-finetune <<'SH'
#!/bin/bash
case "$*" in
    --version) exit ;;
    *--print-config*) printf 'model="mingpt"\ntrain-data="%s"\n' "$DATA"; exit ;;
esac
echo "options:$(printf ' <%s>' "$@")"
echo "values: $(declare -p ODD LINES_OF COMMA QUOTE NOTHING ARGS 2>&1 | tr '\n' '~')"
source "$(dirname "$0")/stand_in.sh"
trap 'stop=1' TERM USR1
while ((step < last && !stop && SECONDS < ${limit:-99999})); do
    sleep 0.1
    echo $((++step)) >>"$out/$name/steps"
done
save
if ((step < last)); then exit 85; fi
SH
cat >bin/mpiexec <<'SH'
#!/bin/bash
if [[ $1 == --version ]]; then echo "HYDRA build details:"; exit; fi
echo "started by $0"
while [[ $1 == -* ]]; do shift 2; done
exec "$@"
SH
chmod +x bin/*
export FSDP_BIN=$work/bin FSDP_HOME=$FSDP_SOURCE

submit() { qsub -C '' -N "$1" -j oe -k doe -V "${@:2}" "$FSDP_SOURCE/pbs/mingpt.pbs"; } # NAME ARGUMENTS of qsub
over() { qstat "$1" >/dev/null 2>&1; (($? == 35)); }
steps() { [[ -e runs/$1/steps && $(wc -l <"runs/$1/steps") -ge $2 ]]; } # RUN N: true if the run has N steps or more
jobs() { find "$TOY_PBS_DIR" -name '*.json' | wc -l; }
show_and_fail() {
    tail -n 20 ./*.o*
    fail "$1"
}
says() { grep -qF -e "$2" "$1".o* || show_and_fail "$1 does not say: $2"; } # NAME TEXT
ends() { wait_for 60 over "$1" || show_and_fail "job $1 does not end"; }

echo "-- PBS's own mpiexec is none: the one beside the programs starts the ranks"
job=$(RUN_NAME=launcher ARGS="--max-steps 3" submit launcher -l walltime=1:00:00)
ends "$job"
says launcher "started by $work/bin/mpiexec"
says launcher "ended with code 0"

echo "-- qdel and qrerun: saved, and not submitted again"
before=$(jobs)
deleted=$(RUN_NAME=deleted ARGS="--max-steps 100000" submit deleted -l walltime=1:00:25)
rerun=$(RUN_NAME=rerun ARGS="--max-steps 100000" submit rerun -l walltime=1:00:25)
unknown=$(RUN_NAME=unknown ARGS="--max-steps 100000" submit unknown)
for name in deleted rerun unknown; do wait_for 60 steps $name 3 || show_and_fail "$name makes no progress"; done
qdel "$deleted" "$unknown"
qrerun "$rerun"
ends "$deleted"
ends "$unknown"
says deleted "stopped by a signal 60 minutes before the walltime's end"
says deleted "not submitted again; submit again with RUN_NAME=deleted to go on"
says unknown "PBS tells no walltime that could be over"
says unknown "no time limit is set for fsdp-finetune, since qstat tells no walltime"
[[ -e runs/deleted/checkpoints/latest ]] || show_and_fail "no checkpoint was saved"
again() { [[ $(grep -c "start by" rerun.o*) == 2 ]]; }
wait_for 60 again || show_and_fail "PBS did not run the job again"
says rerun "not submitted again"
(($(jobs) == before + 3)) || show_and_fail "something was submitted"
[[ $(cut -d' ' -f2 runs/rerun/starts) == 0 ]] || show_and_fail "a start that PBS called off counts as one without progress"
qdel "$rerun"
ends "$rerun"

echo "-- qdel and qrerun in the last minute of the walltime: not submitted again either"
before=$(jobs)
for name in late late-rerun; do
    job=$(RUN_NAME=$name ARGS="--max-steps 100000" submit $name -l walltime=00:00:50)
    wait_for 60 steps $name 3 || show_and_fail "$name makes no progress"
    if [[ $name == late ]]; then qdel "$job"; else qrerun "$job"; fi
    signalled() { grep -q "not submitted again" "$name".o*; }
    wait_for 60 signalled || show_and_fail "$name does not say that it was not submitted again"
    qdel "$job" 2>/dev/null || true
    ends "$job"
done
says late "seconds before the walltime's end"
(($(jobs) == before + 2)) || show_and_fail "something was submitted"

echo "-- the end of the walltime: submitted again, as often as it takes"
before=$(jobs)
RUN_NAME=walltime ARGS="--max-steps 60" submit walltime -l walltime=00:00:03 >first
again() { grep -q "ended with code 0" walltime.o*; }
wait_for 90 again || show_and_fail "the run was not finished"
says walltime "no time limit is set for fsdp-finetune, since a walltime of 3 s leaves no minute before the last 180 s"
(($(jobs) > before + 1)) || show_and_fail "the job was never stopped"
[[ $(<runs/walltime/steps) == "$(seq 60)" ]] || show_and_fail "steps are missing or double"

echo "-- the general job: submits itself as the site file says, and goes on as the same run of its sweep"
cat >site.sh <<'SH'
: "${ACCOUNT:=physics}" "${PARTITION:=special}" "${CONSTRAINT:=system=polaris}" "${GPUS:=2}" "${WALLTIME:=00:00:03}"
: "${SUBMIT:=-N general -j oe -k doe}"
SH
job=$(FSDP_SITE=$work/site.sh MODEL=mingpt DATA=$FSDP_SOURCE/data/shakespeare/train.h5 RUN_NAME=sweep ARRAY="lr=1,2" ARRAY_TASK=1 \
    bash "$FSDP_SOURCE/pbs/train.pbs" --max-steps 60 --note 'two words' | tail -n 1)
qstat -f "$job" | tr -d '\n\t' >general.facts
for fact in "Account_Name = physics" "queue = special" "Resource_List.select = 1:system=polaris:ngpus=2"; do
    grep -qF "$fact" general.facts || { cat general.facts; fail "the job was not submitted with: $fact"; }
done
again() { grep -q "ended with code 0" general.o*; }
wait_for 90 again || show_and_fail "the run was not finished"
says general "<--note> <two words> <--lr=2>"
says general "2 ranks"
[[ $(<runs/sweep/lr-2/steps) == "$(seq 60)" ]] || show_and_fail "steps are missing or double: $(find runs/sweep)"

echo "-- the new job is what the old one was: options, and values with blanks, quotes, commas and line breaks"
export ODD='a  b' LINES_OF=$'one\n    Resource_List.walltime = 9:00:00\ntwo' COMMA='a,b\,c' QUOTE="it's \"so\"" NOTHING=''
submit 'values' -q special -A project -l select=2:ncpus=3:system=polaris -l place=scatter -l walltime=1:00:00 \
    -l filesystems=home:eagle -l software='"a, b"' -m abe -M me@here -p 5 -r n \
    -v 'RUN_NAME=values,TIME_LIMIT=0:00:01,ARGS="--max-steps 100000 --note \"two words\" --seed 3"' >first
again() { [[ $(cat values.o* 2>/dev/null | grep -c "options:") -ge 3 ]]; }
wait_for 60 again || show_and_fail "the job with odd values was not submitted twice"
kill_jobs
"$FSDP_PYTHON" - "$TOY_PBS_DIR" "$(cut -d. -f1 first)" <<'PY' || show_and_fail "the new job differs"
import json, pathlib, sys
folder, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
first, second = (json.loads((folder / f"{n}.json").read_text()) for n in (number, number + 1))
for key in ("attributes", "resources", "workdir"):
    assert first[key] == second[key], (key, first[key], second[key])
for name in ("ODD", "LINES_OF", "COMMA", "QUOTE", "NOTHING", "ARGS", "RUN_NAME", "TIME_LIMIT"):
    assert first["environment"][name] == second["environment"][name], (name, first["environment"][name], second["environment"][name])
PY
[[ $(cat values.o* | grep "^options:" | sed 's/ <--restart[^>]*> <[^>]*>//' | sort -u | wc -l) == 1 ]] || show_and_fail "the program was given something else"
says values "<--note> <two words> <--seed> <3>"
[[ $(cat values.o* | grep "^values:" | sort -u | wc -l) == 1 ]] || show_and_fail "the program's environment differs"

echo "-- an interactive job, a name that leaves OUT_DIR, a submission from pbs/"
by_hand() { # VARIABLE=VALUE...: runs the job script in this shell's environment
    printf 'localhost\n' >nodefile
    env PBS_JOBID=999.toy PBS_JOBNAME=byhand PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" "$@" bash "$FSDP_SOURCE/pbs/mingpt.pbs" 2>&1
}
before=$(jobs) code=0
output=$(by_hand PBS_ENVIRONMENT=PBS_INTERACTIVE RUN_NAME=hand TIME_LIMIT=0:00:01 ARGS="--max-steps 10000") || code=$?
[[ $code == 85 && $output == *"an interactive job is not submitted by itself"* ]] || fail "interactive: $code: $output"
(($(jobs) == before)) || fail "an interactive job was submitted again"
for name in ../../x /tmp/x a/../../x; do
    code=0
    output=$(by_hand RUN_NAME="$name") || code=$?
    [[ $code == 2 && $output == *"leaves OUT_DIR"* ]] || fail "RUN_NAME=$name: $code: $output"
done
output=$(by_hand RUN_NAME=folder PBS_O_WORKDIR="$work/pbs" ARGS="--max-steps 1") || fail "from another folder: $output"
[[ $output == *"<--train-data> <$FSDP_SOURCE/data/shakespeare/train.h5>"* ]] || fail "the data were not found from another folder: $output"
echo "as expected"
