#!/usr/bin/env bash
# The decisions of the job scripts: options, launcher, restart, crash-loop guard. The program and the launcher are
# stand-ins.
set -euo pipefail
source "$(dirname "$0")/common.sh"

cd "$work"
mkdir -p bin launcher
cat >bin/fsdp-finetune <<'SH'
#!/bin/sh
case "$*" in *--print-config) echo "${CONFIG:-}"; exit ;; esac
echo "options: $* [SLURM_EXPORT_ENV=${SLURM_EXPORT_ENV:-}]"
if [ -n "${REACH_STEP:-}" ]; then
    mkdir -p "$OUT_DIR/$RUN_NAME/checkpoints/step-$REACH_STEP"
    ln -sfn "step-$REACH_STEP" "$OUT_DIR/$RUN_NAME/checkpoints/latest"
fi
if [ -n "${SAY:-}" ]; then printf 'last line%s\n' "$SAY"; fi
if [ -n "${SIGNAL:-}" ]; then kill -"$SIGNAL" $PPID; fi # to the job's shell
exit "${END_WITH:-0}"
SH
cat >launcher/mpiexec <<'SH'
#!/bin/sh
if [ "$1" = --version ]; then echo "$MPIEXEC_VERSION"; else echo "mpiexec $*"; fi
SH
printf '#!/bin/sh\nif [ "$1" = show ]; then echo "${FACTS:-}"; else echo "scontrol $*"; fi\n' >launcher/scontrol
cat >launcher/qstat <<'SH'
#!/bin/sh
printf 'Job Id: 7.server\n%b' "${FACTS:-}"
printf '    Account_Name = some_\n\tproject\n    Rerunable = True\n    Resource_List.ncpus = 2\n    Resource_List.select = 2:ncpus=1\n'
printf '    Resource_List.walltime = 01:02:50\n    Submit_arguments = -A some_project\n\t pbs/mingpt.pbs\n'
SH
printf '#!/bin/sh\necho "qsub $*"\n' >launcher/qsub
printf '#!/bin/sh\nif [ -n "${NO_SSH:-}" ]; then echo "Permission denied" >&2; exit 255; fi\n' >launcher/ssh
printf '#!/bin/sh\n' >launcher/pbs_tmrsh
chmod +x bin/fsdp-finetune launcher/*
printf 'node1\nnode1\nnode2\nnode2\n' >nodefile
unset "${!SLURM_@}" "${!PBS_@}"

mkdir -p home/scripts # a project without an mpiexec of its own
ln -s "$FSDP_SOURCE/scripts/jobs" home/scripts/jobs
pbs() { # VARIABLE=VALUE...
    env PATH="$work/launcher:$PATH" FSDP_BIN="$work/bin" OUT_DIR="$work/runs" PBS_JOBID=7.server PBS_NODEFILE="$work/nodefile" PBS_JOBNAME=mingpt.pbs \
        PBS_O_WORKDIR="$work" "$@" bash "$FSDP_SOURCE/pbs/mingpt.pbs" 2>&1
}
slurm() { # VARIABLE=VALUE... [-- ARGUMENTS of the script]
    local -a variables=()
    while (($#)) && [[ $1 != -- ]]; do variables+=("$1"); shift; done
    env PATH="$work/launcher:$PATH" FSDP_BIN="$work/bin" OUT_DIR="$work/runs" SLURM_JOB_ID=7 SLURM_SUBMIT_DIR="$work" \
        LAUNCHER=env "${variables[@]}" bash "$FSDP_SOURCE/slurm/mingpt.sh" "${@:2}" 2>&1
}
expect() { # CODE WORDS COMMAND...: COMMAND ends with CODE and prints WORDS
    local code=$1 words=$2 got=0 output
    shift 2
    output=$("$@") || got=$?
    if [[ $got != "$code" || $output != *"$words"* ]]; then
        printf '%s\n' "$output"
        fail "'$*' gave $got, expected $code and: $words"
    fi
}

# Launcher: the script counts distinct hosts, not lines of the node file.
expect 0 "--ppn 4 --depth=8 --cpu-bind list:24:16:8:0 $work/bin/fsdp-finetune" pbs MPIEXEC_VERSION="PALS 1.3.4"
expect 0 "mpiexec -n 8 --ppn 4" pbs MPIEXEC_VERSION="PALS 1.3.4"
expect 0 "--depth=8 $work/bin/fsdp-finetune" pbs MPIEXEC_VERSION="PALS 1.3.4" CPU_BIND=
expect 0 "-ppn 4 -n 8 $work/bin/fsdp-finetune" pbs MPIEXEC_VERSION="HYDRA build details:"
expect 0 "start by $work/launcher/mpiexec -f" pbs MPIEXEC_VERSION="HYDRA build details:"
expect 0 "start by env HYDRA_LAUNCHER=rsh HYDRA_LAUNCHER_EXEC=" pbs MPIEXEC_VERSION="HYDRA build details:" NO_SSH=1
expect 0 "ssh to node2 fails (Permission denied): pbs_tmrsh reaches" pbs MPIEXEC_VERSION="HYDRA build details:" NO_SSH=1
expect 0 "start by $work/launcher/mpiexec -f" pbs MPIEXEC_VERSION="HYDRA build details:" NO_SSH=1 HYDRA_LAUNCHER=ssh
expect 2 "no mpiexec on PATH but PBS's own" pbs MPIEXEC_VERSION="pbs_version = 23.06.06" FSDP_HOME="$work/home"
expect 0 "--map-by ppr:2:node --bind-to none -n 4" pbs MPIEXEC_VERSION="mpiexec (Open MPI) 5.0.1" RANKS_PER_NODE=2
expect 0 "PRTE_MCA_plm_ssh_agent=" pbs MPIEXEC_VERSION="mpiexec (Open MPI) 5.0.1" NO_SSH=1
expect 0 "start by $FSDP_SOURCE/scripts/jobs/open_mpi.sh" pbs MPIEXEC_VERSION="mpiexec (Open MPI) 5.0.1" NO_SSH=1 OMPI_MCA_plm=tm
expect 0 "-x OMP_NUM_THREADS" pbs MPIEXEC_VERSION="mpiexec (Open MPI) 5.0.1" RANKS_PER_NODE=2

expect 2 "heterogeneous job of 2 components" slurm SLURM_HET_SIZE=2

# Options: an argument takes precedence over its variable and is passed once; without a checkpoint there is no restart.
expect 0 "--num-layers 6 --num-heads 12" slurm NUM_LAYERS=6
expect 0 "--run-name a --num-layers=3" slurm RUN_NAME=a NUM_LAYERS=6 -- --num-layers=3
expect 0 "--run-name b --seed 3 --lr 1" pbs RUN_NAME=b LAUNCHER=env ARGS="--seed 3 --lr 1"
if slurm RUN_NAME=c -- --num-layers 3 | grep -q -e '--num-layers 12' -e restart; then fail "an option was given twice, or a restart"; fi

# Exit code 85: start again from the checkpoint, as long as there is progress.
expect 0 "scontrol requeue 7" slurm RUN_NAME=d END_WITH=85 REACH_STEP=00000010
expect 0 "--restart-checkpoint-file latest" slurm RUN_NAME=d END_WITH=85 REACH_STEP=00000018
expect 0 "from step 18" slurm RUN_NAME=d END_WITH=85
expect 0 "requeueing" slurm RUN_NAME=d END_WITH=85
expect 1 "no progress" slurm RUN_NAME=d END_WITH=85
expect 0 "requeueing" slurm RUN_NAME=d END_WITH=85 REACH_STEP=00000020
# A copy of the run has no link: the newest step counts, and the run goes on from there.
cp -r runs/d runs/copied
rm runs/copied/checkpoints/latest runs/copied/starts
for step in 10 18 20; do touch "runs/copied/checkpoints/step-000000$step/run.json"; done
expect 0 "--restart-checkpoint-file latest" pbs RUN_NAME=copied LAUNCHER=env END_WITH=85 "RESUBMIT=echo again"
cp -r runs/copied/checkpoints/step-00000010 runs/copied/checkpoints/latest
expect 0 "--restart-checkpoint-file latest" pbs RUN_NAME=copied LAUNCHER=env END_WITH=85 "RESUBMIT=echo again"
[[ $(<runs/copied/starts) == "20 1" ]] || fail "the newest step is $(<runs/copied/starts)"
# A sweep goes on by itself; the steps of all its runs count.
mkdir runs/swept
touch runs/swept/sweep.json
cp -r runs/d runs/swept/lr-1
cp -r runs/copied runs/swept/lr-2
expect 0 "stopped at step 40, requeueing" slurm RUN_NAME=swept END_WITH=85
if slurm RUN_NAME=swept END_WITH=85 | grep -q -e --restart-checkpoint-file; then fail "a sweep was given a checkpoint"; fi
mkdir runs/swept/lr-2/checkpoints/step-00000030
touch runs/swept/lr-2/checkpoints/step-00000030/run.json
expect 0 "requeueing" slurm RUN_NAME=swept END_WITH=85
[[ $(<runs/swept/starts) == "50 0" ]] || fail "a sweep stands at $(<runs/swept/starts)"
expect 0 "again RUN e" pbs RUN_NAME=e LAUNCHER=env END_WITH=85 REACH_STEP=00000010 "RESUBMIT=echo again RUN \$RUN_NAME"
expect 0 "again" pbs RUN_NAME=e LAUNCHER=env END_WITH=85 "RESUBMIT=echo again"
expect 0 "again" pbs RUN_NAME=e LAUNCHER=env END_WITH=85 "RESUBMIT=echo again"
expect 1 "no progress" pbs RUN_NAME=e LAUNCHER=env END_WITH=85 "RESUBMIT=echo again"
expect 85 "RUN_NAME=f" pbs RUN_NAME=f LAUNCHER=env END_WITH=85 REACH_STEP=00000010 RESUBMIT=no

# A cancelled job stays cancelled, however little of its time is left, and whether the shell saw the signal or not.
late="TimeLimit=00:00:27" # less than a minute after the script's start
expect 85 "seconds before the time limit, at step 10: not requeued; submit again with RUN_NAME=k" \
    slurm RUN_NAME=k END_WITH=85 REACH_STEP=00000010 SIGNAL=TERM FACTS="JobState=COMPLETING Reason=None $late"
expect 85 "not requeued" slurm RUN_NAME=k END_WITH=85 FACTS="JobState=COMPLETING Reason=None $late"
expect 85 "not requeued" slurm RUN_NAME=k END_WITH=85 SIGNAL=USR1 FACTS="JobState=CANCELLED Reason=None $late"
expect 85 "not requeued" slurm RUN_NAME=k END_WITH=85 SIGNAL=TERM FACTS="JobState=RUNNING Reason=None $late" # preemption with a grace time
expect 85 "not requeued" slurm RUN_NAME=k END_WITH=85 SIGNAL=TERM
[[ ! -e runs/k/starts ]] || fail "a start that was called off counts: $(<runs/k/starts)"
expect 0 "scontrol requeue 7" slurm RUN_NAME=k END_WITH=85 SIGNAL=TERM FACTS="JobState=COMPLETING Reason=TimeLimit $late"
expect 0 "scontrol requeue 7" slurm RUN_NAME=l END_WITH=85 REACH_STEP=00000010 SIGNAL=USR1 FACTS="JobState=RUNNING Reason=None $late"
printf 'n3\r\n# a comment\n\nn1 # hot\n' >excluded
expect 0 "scontrol update JobId=7 ExcNodeList=n3,n1" slurm RUN_NAME=x END_WITH=85 REACH_STEP=00000010 CONFIG="exclude-file=\"$work/excluded\""
if slurm RUN_NAME=y END_WITH=85 REACH_STEP=00000010 CONFIG="exclude-file=\"$work/none\"" | grep -q ExcNodeList; then fail "no node is left out"; fi
expect 0 "ExcNodeList=n7,n3,n1" slurm RUN_NAME=z END_WITH=85 REACH_STEP=00000010 CONFIG="exclude-file=\"$work/excluded\"" FACTS="ExcNodeList=n7 x=y"
expect 0 "scontrol requeue 7" slurm RUN_NAME=w END_WITH=85 REACH_STEP=00000010 CONFIG="exclude-file=\"$work\""
pbs_late="    Resource_List.walltime = 00:00:01\\n"
stopped=(RUN_NAME=m LAUNCHER=env END_WITH=85 REACH_STEP=00000010 "RESUBMIT=echo again")
expect 85 "before the walltime's end, at step 10: not submitted again" \
    pbs "${stopped[@]}" SIGNAL=TERM FACTS="    comment = Job run at noon on (n1) and terminated by me@here\\n$pbs_late"
expect 85 "not submitted again" pbs "${stopped[@]}" FACTS="    comment = Job run at noon on (n1) and terminated\\n$pbs_late"
expect 85 "not submitted again" pbs "${stopped[@]}" SIGNAL=TERM FACTS="    substate = 60\\n$pbs_late" # qrerun
expect 85 "63 minutes before the walltime's end" pbs "${stopped[@]}" SIGNAL=TERM
expect 0 "again" pbs "${stopped[@]}" SIGNAL=TERM FACTS="    comment = Job run at noon on (n1)\\n$pbs_late"
# Where the job's output is a file, PBS says in it that the walltime is over.
into_file() { pbs "$@" >output && : || { local code=$?; cat output; return $code; }; cat output; }
expect 85 "not submitted again" into_file "${stopped[@]}" SIGNAL=TERM FACTS="$pbs_late"
expect 0 "again" into_file "${stopped[@]}" SIGNAL=TERM SAY="=>> PBS: job killed: walltime 3 exceeded limit 1" FACTS="$pbs_late"

# A run that is given a checkpoint starts from it once, under whatever name of the option; then it goes on from its own.
checkpoint=$work/other/checkpoints/step-00000050
given() { slurm RUN_NAME=g1 END_WITH=85 "$@" CONFIG="restart-checkpoint-file=\"$checkpoint\""; }
expect 0 "--restart $checkpoint" slurm RUN_NAME=g1 END_WITH=85 REACH_STEP=00000060 CONFIG="restart-checkpoint-file=\"$checkpoint\"" -- --restart "$checkpoint"
[[ $(<runs/g1/started-from) == "$checkpoint" ]] || fail "the checkpoint is not noted"
touch -d '1 second ago' runs/g1/started-from
expect 0 "--restart $checkpoint --restart-checkpoint-file latest" \
    slurm RUN_NAME=g1 END_WITH=85 REACH_STEP=00000070 CONFIG="restart-checkpoint-file=\"$checkpoint\"" -- --restart "$checkpoint"
expect 0 "goes on from its own newest checkpoint; it has started from $checkpoint" given
expect 0 "--restart-checkpoint-file latest [" pbs RUN_NAME=g1 LAUNCHER=env CONFIG="restart-checkpoint-file=\"$checkpoint\"" # the program ends well
if slurm RUN_NAME=g1 END_WITH=4 CONFIG="restart-checkpoint-file=\"$work/third\"" -- --restart "$work/third" | grep -q "goes on from its own"; then
    fail "another checkpoint is not started from"
fi

# A task of an array asks for itself alone: the number of one of them is the array's.
array=(SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2)
expect 0 "scontrol requeue 7_2" slurm RUN_NAME=n END_WITH=85 REACH_STEP=00000010 "${array[@]}"
if slurm RUN_NAME=n END_WITH=85 "${array[@]}" | grep -q "scontrol requeue 7$"; then fail "every task of the array is requeued"; fi

# qstat's facts: the time limit is the walltime less 3 minutes; the options of the submission stand on folded lines.
expect 0 "--time-limit 0:59:50" pbs RUN_NAME=h LAUNCHER=env
expect 0 "--time-limit 5:00 " pbs RUN_NAME=h LAUNCHER=env TIME_LIMIT=5:00
expect 0 "qsub -V -C  -N mingpt.pbs -q debug -A some_project -r y -l select=2:ncpus=1 -l walltime=01:02:50 $FSDP_SOURCE/pbs/mingpt.pbs" pbs PBS_O_QUEUE=debug RUN_NAME=i LAUNCHER=env END_WITH=85 REACH_STEP=00000010

# Scripts print the next command; a start that was refused does not count.
expect 9 "killed by SIGKILL" pbs RUN_NAME=e LAUNCHER=env END_WITH=9
expect 1 "submit again with RUN_NAME=e to go on from step 10" pbs RUN_NAME=e LAUNCHER=env END_WITH=1
expect 137 "killed by SIGKILL" slurm RUN_NAME=e END_WITH=137
printf '10 1\n' >runs/e/starts
expect 4 "code 4" pbs RUN_NAME=e LAUNCHER=env END_WITH=4
[[ $(<runs/e/starts) == "10 1" ]] || fail "a start that was refused counts: $(<runs/e/starts)"

# Variables of the job reach the ranks where it was submitted with --export=NONE, and the scripts work with a CDPATH, and
# with a function in place of cd that prints.
expect 0 "[SLURM_EXPORT_ENV=ALL]" slurm RUN_NAME=x SLURM_EXPORT_ENV=NONE
relative() { (cd "$FSDP_SOURCE" && env CDPATH=.:/usr PATH="$work/launcher:$PATH" FSDP_BIN="$work/bin" OUT_DIR="$work/runs" RUN_NAME=x "$@" 2>&1); }
expect 0 "options: " relative SLURM_JOB_ID=7 LAUNCHER=env bash slurm/mingpt.sh
expect 0 "options: " relative PBS_JOBID=7.server PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$FSDP_SOURCE" LAUNCHER=env bash pbs/mingpt.pbs
# shellcheck disable=SC2016
telling='BASH_FUNC_cd%%=() { builtin cd "$@" && pwd; }'
expect 0 "options: " relative "$telling" SLURM_JOB_ID=7 LAUNCHER=env bash slurm/mingpt.sh
expect 0 "options: " relative "$telling" PBS_JOBID=7.server PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$FSDP_SOURCE" LAUNCHER=env bash pbs/mingpt.pbs
# The submitted file is found in the facts of an array, too, of which each task has its own.
mkdir -p elsewhere spool
cp "$FSDP_SOURCE/slurm/mingpt.sh" spool/slurm_script
expect 0 "options: " env PATH="$work/launcher:$PATH" FSDP_BIN="$work/bin" OUT_DIR="$work/runs" RUN_NAME=x LAUNCHER=env SLURM_SUBMIT_DIR="$work/elsewhere" \
    SLURM_JOB_ID=7 FACTS="   Command=$FSDP_SOURCE/slurm/mingpt.sh --seed 3
   Command=$FSDP_SOURCE/slurm/mingpt.sh" bash spool/slurm_script
mkdir -p "my project/scripts"
cp -r "$FSDP_SOURCE/slurm" "my project"
ln -s "$FSDP_SOURCE/scripts/jobs" "my project/scripts/jobs"
for facts in "slurm/mingpt.sh" "slurm/mingpt.sh --seed 3 --out a/b"; do
    expect 0 "options: " env PATH="$work/launcher:$PATH" FSDP_BIN="$work/bin" OUT_DIR="$work/runs" RUN_NAME=x LAUNCHER=env SLURM_JOB_ID=7 \
        SLURM_SUBMIT_DIR="$work/elsewhere" FACTS="   Command=$work/my project/$facts" bash spool/slurm_script
done

# Any other exit code is passed on; a script that is run without its scheduler says so.
expect 4 "code 4" slurm RUN_NAME=g END_WITH=4
expect 4 "code 4" pbs RUN_NAME=g LAUNCHER=env END_WITH=4
expect 2 "sbatch" slurm SLURM_JOB_ID=
expect 2 "qsub" pbs PBS_JOBID=
expect 2 "leaves OUT_DIR" slurm RUN_NAME=../../x
expect 2 "a name of 256 bytes" slurm RUN_NAME="s/$(printf 'x%.0s' {1..256})"
expect 2 "FSDP_BIN" slurm FSDP_BIN="$work/nothing"
# If there is no srun, or it starts nothing, the script names the way to run without it.
mkdir tools
for tool in bash env sed dirname basename date mkdir readlink cat tr; do ln -s "$(type -P "$tool")" "tools/$tool"; done
expect 2 "there is no srun here" slurm RUN_NAME=s LAUNCHER= PATH="$work/tools"
printf '#!/bin/sh\necho "srun: error: 1" >&2\necho "srun: fatal: no controller" >&2\nexit 1\n' >tools/srun
chmod +x tools/srun
expect 2 "srun starts nothing here (srun: fatal: no controller): on one node LAUNCHER=\"$work/bin/mpiexec -n 2\"" \
    slurm RUN_NAME=s LAUNCHER= SLURM_NTASKS=2 PATH="$work/tools"
echo "as expected"
