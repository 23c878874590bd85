#!/usr/bin/env bash
# The decisions of the general job: site file, submission by itself, sweeps, copies on the nodes, container; and what
# site-check writes. Programs, schedulers, modules and apptainer are stand-ins.
set -euo pipefail
source "$(dirname "$0")/common.sh"

cd "$work"
mkdir -p bin launcher quiet model disk
unset "${!SLURM_@}" "${!PBS_@}" "${!HF_@}" "${!SUBMIT@}" MODEL DATA VAL_DATA PLAN ARGS DEVICE PRECISION ARRAY STAGE CONTAINER GPUS ACCOUNT PARTITION
# Prints the options as --print-config does, or as they are, with the variables that matter.
cat >bin/fsdp-finetune <<'SH'
#!/bin/sh
case "$*" in
    *--print-config*)
        while [ $# -gt 0 ]; do
            case $1 in --no-such*) exit 2 ;; --*=*) name=${1%%=*} value=${1#*=} ;; --*) name=$1 value=${2:-}; shift ;; *) exit 2 ;; esac
            if [ $# -gt 0 ]; then shift; fi
            echo "${name#--}=\"$value\""
        done
        exit ;;
    --version) exit ;;
esac
echo "options: $* [FSDP_STAGED=${FSDP_STAGED:-} NCCL_IB_HCA=${NCCL_IB_HCA:-}]"
if [ -n "${REACH_STEP:-}" ]; then
    mkdir -p "$OUT_DIR/$RUN_NAME/checkpoints/step-$REACH_STEP"
    ln -sfn "step-$REACH_STEP" "$OUT_DIR/$RUN_NAME/checkpoints/latest"
fi
exit "${END_WITH:-0}"
SH
printf '#!/bin/sh\nexit 0\n' >bin/fsdp-ckpt-convert
for name in scontrol sbatch qsub; do printf '#!/bin/sh\necho "%s $*  [ARGS=${ARGS:-}]"\n' $name >launcher/$name; done
printf '#!/bin/sh\nprintf "Job Id: 7[2].server\\n    Resource_List.select = 1\\n    Resource_List.walltime = 01:00:00\\n"\n' >launcher/qstat
printf '#!/bin/sh\necho "apptainer $*"\n' >launcher/apptainer
chmod +x bin/* launcher/*
echo '{}' >model/config.json
echo '{}' >model/tokenizer.json
head -c 3000000 /dev/urandom >model/model.safetensors
echo unread >model/pytorch_model.bin
echo tokens >train.h5
echo node1 >nodefile

run() { # SCRIPT VARIABLE=VALUE... [-- ARGUMENTS of the script]
    local -a variables=()
    local script=$1
    shift
    while (($#)) && [[ $1 != -- ]]; do variables+=("$1"); shift; done
    env PATH="$work/launcher:$PATH" FSDP_BIN="$work/bin" FSDP_HOME="$FSDP_SOURCE" OUT_DIR="$work/runs" MODEL="$work/model" DATA="$work/train.h5" \
        "${variables[@]}" bash "$FSDP_SOURCE/$script" "${@:2}" 2>&1
}
slurm() { run slurm/train.sh SLURM_JOB_ID=7 SLURM_SUBMIT_DIR="$work" LAUNCHER=env "$@"; }
pbs() { run pbs/train.pbs PBS_JOBID="7[2].server" PBS_JOBNAME=train PBS_NODEFILE="$work/nodefile" PBS_O_WORKDIR="$work" LAUNCHER=env "$@"; }
expect() { # CODE WORDS COMMAND...: COMMAND ends with CODE and prints WORDS
    local code=$1 words=$2 got=0
    shift 2
    output=$("$@") || got=$?
    if [[ $got != "$code" || $output != *"$words"* ]]; then
        printf '%s\n' "$output"
        fail "'$*' gave $got, expected $code and: $words"
    fi
}

# --- the site file ----------------------------------------------------------------------------------------------------
mkdir -p modules/init
echo 'module() { echo "module $*"; return "$UNSET_BY_NOBODY"; }' >modules/init/bash
cat >site.sh <<'SH'
module load gcc/12 mpich
: "${ACCOUNT:=physics}" "${PARTITION:=gpu}" "${GPUS:=4}" "${CONSTRAINT:=a100}"
: "${SUBMIT:=--mem=0 --comment='two words'}"
export NCCL_IB_HCA="${NCCL_IB_HCA-mlx5}"
false
SH
site=(FSDP_SITE="$work/site.sh" MODULESHOME="$work/modules" LMOD_PKG=)
expect 0 "module load gcc/12 mpich" run slurm/train.sh "${site[@]}" -- --show
expect 0 "sbatch --export=ALL --account=physics --partition=gpu --constraint=a100 --gpus-per-node=4 --ntasks-per-node=4 --mem=0 '--comment=two words' $FSDP_SOURCE/slurm/train.sh --lr 1e-4" \
    run slurm/train.sh "${site[@]}" -- --show --lr 1e-4
expect 0 "--account=mine --partition=gpu --constraint=a100 --nodes=2 --time=2:00:00 --mail-user=me@x --mail-type=END,FAIL --gpus-per-node=1" \
    run slurm/train.sh "${site[@]}" ACCOUNT=mine NODES=2 WALLTIME=2:00:00 MAIL=me@x GPUS=1 -- --show
expect 0 "-A physics -q gpu -l select=2:ncpus=64:a100:ngpus=4 -l place=scatter --mem=0" run pbs/train.pbs "${site[@]}" NODES=2 CPUS=64 MAIL=/var/mail/me -- --show
expect 0 "'ARGS=--run-config '\\''a b'\\''' qsub -V" run pbs/train.pbs "${site[@]}" -- --show --run-config 'a b'
expect 0 "sbatch --export=ALL --account=physics" run slurm/train.sh "${site[@]}"
expect 0 "NCCL_IB_HCA=mlx5" slurm "${site[@]}"
expect 0 "NCCL_IB_HCA=own" slurm "${site[@]}" NCCL_IB_HCA=own
expect 2 "no such file" slurm FSDP_SITE="$work/nothing"
echo 'if' >broken.sh
expect 2 "syntax error" slurm FSDP_SITE="$work/broken.sh"
# shellcheck disable=SC2016
env "${site[@]}" bash -c 'set -euo pipefail; source "$1/scripts/jobs/site.sh"; read_site >/dev/null; [[ $- == *e* && $- == *u* ]]' bash "$FSDP_SOURCE" ||
    fail "after the site file, the script goes on after errors"
# The checks of the job come before the submission.
expect 4 "no such directory" run slurm/train.sh MODEL=org/none -- --show
expect 4 "training data $work/none" run slurm/train.sh DATA="$work/none" -- --show
expect 2 "does not take these options" run slurm/train.sh -- --no-such-option
expect 2 "RUN_NAME and OUT_DIR" run slurm/train.sh -- --show --run-name a

# A walltime that leaves little before the script's signal is told, as is what each rank runs.
expect 0 "WALLTIME=0:05:30 leaves 30 s for training in each job, which stops 300 s before its end" run slurm/train.sh WALLTIME=0:05:30 -- --show
expect 0 "WALLTIME=0:05:30 leaves 270 s for training" run slurm/train.sh WALLTIME=0:05:30 SUBMIT=--signal=USR1@60 -- --show
expect 0 "WALLTIME=00:02:00 leaves 0 s for training in each job, which stops 180 s before" run pbs/train.pbs WALLTIME=00:02:00 -- --show
expect 0 "# each rank runs: $work/bin/fsdp-finetune --model $work/model " run slurm/train.sh WALLTIME=0:15:00 -- --show --lr 1e-4
[[ $output != *leaves* ]] || fail "fifteen minutes are no little: $output"
# It is what the job takes, whose nodes have GPUs that this machine lacks.
for script in slurm/train.sh pbs/train.pbs; do
    expect 0 " --precision bf16 --out-dir $work/runs --run-name train-JOBID" run "$script" GPUS=4 -- --show
    expect 0 " --precision bf16 --out-dir $work/runs --run-name a" run "$script" RUN_NAME=a GPUS=0 SUBMIT="-l select=1:ngpus=2" -- --show
    expect 0 " --precision float32 " run "$script" GPUS=4 DEVICE=cpu -- --show
    if [[ ! -e /dev/nvidiactl ]]; then expect 0 " --precision float32 " run "$script" GPUS=0 -- --show; fi
done

# The command of --show is whole: pasted into another shell, it submits with the same environment.
mkdir other
printf '#!/bin/sh\necho "$*"\nenv\n' | tee other/sbatch >other/qsub
chmod +x other/*
for script in slurm/train.sh pbs/train.pbs; do
    expect 0 "env MODEL=$work/model" run "$script" LR=1e-4 FSDP_OPT_DATA_FIELD="two words" RUN_NAME=a -- --show --seed 7
    env -i PATH="$work/other:$PATH" bash -c "$output" >pasted
    for line in "MODEL=$work/model" "DATA=$work/train.h5" LR=1e-4 "FSDP_OPT_DATA_FIELD=two words" RUN_NAME=a "OUT_DIR=$work/runs" "FSDP_BIN=$work/bin"; do
        grep -qxF "$line" pasted || { cat pasted; fail "$script --show leaves out $line"; }
    done
    grep -qxE "ARGS=--seed 7|.*train.sh --seed 7" pasted || { cat pasted; fail "$script --show leaves out arguments"; }
    # Each variable that the script lists is one that --show knows.
    # shellcheck source=../../scripts/jobs/train.sh
    known=$(source "$FSDP_SOURCE/scripts/jobs/train.sh" && echo " ${job_variables[*]} FSDP_OPT_NAME ARGS ")
    sed -n '/Variables of the run/,/^# Variables of the submission/s/^#   \([A-Z]\)/\1/p' "$FSDP_SOURCE/$script" | sed 's/   .*//' | tr ', ' '\n\n' |
        grep -xE '[A-Z_]+' >listed
    (($(wc -l <listed) > 20)) || fail "few variables found: $(<listed)"
    while IFS= read -r name; do
        [[ $known == *" $name "* ]] || fail "$script lists $name, which --show does not print"
    done <listed
done
# Without a scheduler the script says so and names the command that trains here.
mkdir plain && for tool in bash env awk sed grep sort uniq tail head tr cut paste ls find id df timeout cat mkdir mv dirname basename date getconf uname wc \
    realpath xargs printf; do
    ln -s "$(type -P "$tool")" "plain/$tool"
done
for script in slurm/train.sh pbs/train.pbs; do
    expect 0 "env MODEL=$work/model" run "$script" PATH="$work/plain" -- --show
    expect 2 "there is no " run "$script" PATH="$work/plain" ARRAY="lr=1,2" -- --prompt "a b"
    [[ $output == *"as one rank (the first of 2 runs): $work/bin/fsdp-finetune --model $work/model "*" --run-name train/lr-1 --prompt 'a b' --lr=1" ]] ||
        fail "no command that trains here: $output"
    expect 4 "training data $work/none" run "$script" PATH="$work/plain" DATA="$work/none"
done

# The examples of site files.
example() { run "$1" FSDP_SITE="$FSDP_SOURCE/docs/sites/$2.sh" MODULESHOME="$work/modules" LMOD_PKG= SCRATCH=/s USER=me MAIL=/var/mail/me OUT_DIR= -- --show; }
expect 0 "qsub -V -A PROJECT -q debug -l select=1:system=polaris:ngpus=4 -l place=scatter -l filesystems=home:eagle" example pbs/train.pbs polaris
expect 0 "sbatch --export=ALL --account=GROUP --partition=gpu --constraint=gpu80 --time=12:00:00 --mail-user=me@example.edu" example slurm/train.sh slurm-infiniband
expect 0 "sbatch --export=ALL --account=PROJECT --qos=regular '--constraint=gpu&hbm80g' --gpus-per-node=4" example slurm/train.sh slingshot

# A value that leaves the GPUs out, or a line end that becomes part of an account's name, is refused before anything is submitted.
printf 'ACCOUNT=abc\r\n' >windows.sh
for script in slurm/train.sh pbs/train.pbs; do
    for gpus in a100:4 two 08 1.5 -1; do expect 2 "GPUS=$gpus: the number of GPUs per node" run "$script" GPUS="$gpus" -- --show; done
    expect 2 "windows.sh: has line ends of Windows" run "$script" FSDP_SITE="$work/windows.sh" -- --show
done

# --- sweeps -----------------------------------------------------------------------------------------------------------
sweep="lr=1e-5,3e-5,1e-4 --seed=1,2"
expect 0 "sbatch --export=ALL --array=0-5 $FSDP_SOURCE" run slurm/train.sh ARRAY="$sweep" -- --show
expect 0 "qsub -V -J 0-5 $FSDP_SOURCE" run pbs/train.pbs ARRAY="$sweep" -- --show
expect 0 "--run-name train-5/lr-1e-5,seed-1 --lr 9 --lr=1e-5 --seed=1 " slurm ARRAY="$sweep" SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_JOB_ID=5 -- --lr 9
expect 0 "--run-name s/lr-1e-4,seed-1 --lr=1e-4 --seed=1 " slurm ARRAY="$sweep" SLURM_ARRAY_TASK_ID=4 RUN_NAME=s
expect 2 "has no combination" slurm ARRAY="$sweep" SLURM_ARRAY_TASK_ID=6
expect 2 "needs a job array, of 6 tasks" slurm ARRAY="$sweep"
expect 2 "'lr' is not NAME=VALUE" slurm ARRAY="lr" SLURM_ARRAY_TASK_ID=0
for twice in "lr=1e-5,1,1e-5" "adapter=a/b,a_b seed=1,2"; do
    expect 2 "two runs would have the folder" run slurm/train.sh ARRAY="$twice" -- --show
done
# A folder whose name would be too long is refused before anything is submitted, in whichever task it is.
long=$(printf 'x%.0s' {1..239})
for script in slurm/train.sh pbs/train.pbs; do
    expect 2 "a name of 256 bytes" run "$script" ARRAY="lr=1,1e-5 adapter=a,/$long"
    expect 0 "$FSDP_SOURCE/$script" run "$script" ARRAY="lr=1,1e-4 seed=1,2,3,4 adapter=a,${long:7}"
done
# In the shell of a job --show shows as it does outside, and a start says that it trains in this job.
expect 0 "sbatch --export=ALL $FSDP_SOURCE" slurm -- --show --lr 9
expect 0 "qsub -V $FSDP_SOURCE" pbs -- --show --lr 9
expect 0 "this shell is in job 7, in which this trains; env -u SLURM_JOB_ID bash $FSDP_SOURCE/slurm/train.sh" slurm -- --lr 9
expect 0 "this shell is in job 7[2].server, in which this trains; env -u PBS_JOBID bash" pbs -- --lr 9
# A task of PBS that submits itself again is a job of its own, with the same run.
expect 0 "qsub -V -C  -N train" pbs ARRAY="$sweep" PBS_ARRAY_INDEX=2 PBS_O_QUEUE=q END_WITH=85 REACH_STEP=00000010 RUN_NAME=p
[[ $output == *"--run-name p/lr-3e-5,seed-1"* ]] || fail "the task's run: $output"
expect 0 "--run-name p/lr-3e-5,seed-1 --time-limit 0:57:00 --restart-checkpoint-file latest --lr=3e-5 --seed=1 [" pbs PBS_JOBID=8.server ARRAY="$sweep" ARRAY_TASK=2 RUN_NAME=p/lr-3e-5,seed-1

# --- copies on the nodes ----------------------------------------------------------------------------------------------
stage="$work/disk/fsdp-stage-$(id -un)"
expect 0 "--model $stage$work/model --train-data $stage$work/train.h5 [FSDP_STAGED=$stage" slurm STAGE="$work/disk"
[[ $output == *"4 of 4 files, 2 MiB, copied"* ]] || fail "not four files: $output"
cmp "$stage$work/model/model.safetensors" model/model.safetensors
[[ ! -e $stage$work/model/pytorch_model.bin ]] || fail "weights were copied that no program reads"
# shellcheck disable=SC2016 # the job's
expect 0 "all 4 files are in" slurm 'STAGE=$TMPDIR/disk' TMPDIR="$work"
echo more >>train.h5
expect 0 "1 of 4 files" slurm STAGE="$work/disk"
truncate -s 1000 "$stage$work/model/model.safetensors" # as a killed job or a full disk leaves a file
expect 0 "1 of 4 files" slurm STAGE="$work/disk"
cmp "$stage$work/model/model.safetensors" model/model.safetensors
# Where a copy fails, the originals are read.
printf '#!/bin/sh\ncat >/dev/null; echo $$\n' >quiet/sha256sum # no two hashes are equal
printf '#!/bin/sh\nprintf "Avail\\n10\\n"\n' >quiet/df
chmod +x quiet/*
rm -rf disk/*
for broken in sha256sum df; do
    expect 0 "the copies failed (code 1): ranks read $work/model $work/train.h5" slurm STAGE="$work/disk" PATH="$work/quiet:$work/launcher:$PATH"
    [[ $output == *"[FSDP_STAGED= "* ]] || fail "copies that failed are read: $output"
    [[ -z $(find disk -name '*.part*' -o -name '*.staged' | head) ]] || fail "left behind: $(find disk)"
    rm "quiet/$broken"
    printf '#!/bin/sh\nprintf "Avail\\n10\\n"\n' >quiet/df
    chmod +x quiet/df
done
rm -f quiet/*
expect 2 "not the path of a folder" slurm STAGE=relative
expect 0 "nothing is copied" slurm STAGE="$work/disk" SLURM_JOB_NUM_NODES=2 # LAUNCHER does not say how
# shellcheck disable=SC2016
expect 0 "is empty in this job" slurm 'STAGE=${NOBODY_SETS_THIS}'

# --- container --------------------------------------------------------------------------------------------------------
: >fsdp.sif
container() { "$FSDP_SOURCE/scripts/jobs/container/fsdp-eval" "$@"; }
export -f container
expect 0 "apptainer exec --bind $work --bind $FSDP_SOURCE --bind /usr/lib --env FSDP_HOST_MPI=/usr/lib --writable-tmpfs $work/fsdp.sif fsdp-eval --model=$work/model $work/train.h5" \
    env PATH="$work/launcher:$PATH" CONTAINER="$work/fsdp.sif" CONTAINER_BIND="$FSDP_SOURCE:/usr/lib" HF_HOME="$work/none" CONTAINER_OPTIONS=--writable-tmpfs \
    HOST_MPI=/usr/lib bash -c 'container --model="$PWD/model" "$PWD/train.h5"'
printf '#!/bin/sh\nwhile [ "$1" != "%s/fsdp.sif" ]; do echo "apptainer: $1" >&2; shift; done\nshift\nexec "%s/bin/$@"\n' "$work" "$work" >launcher/apptainer
expect 0 "options: --model $work/model" slurm FSDP_BIN= CONTAINER=fsdp.sif
expect 4 "no such image" slurm CONTAINER=none.sif
rm launcher/apptainer
if ! command -v apptainer singularity >/dev/null; then expect 2 "does not take these options" slurm CONTAINER=fsdp.sif; fi

# --- site-check -------------------------------------------------------------------------------------------------------
cat >launcher/sinfo <<'SH'
#!/bin/sh
case $* in --version) echo "slurm 23.11" ;; *)
    echo "cpu|(null)|icelake|300|1-00:00:00|96|512000|up"
    echo "gpu*|gpu:a100:4(S:0-1)|a100,ib|40|1-00:00:00|64|768000+|up"
    echo "old|gpu:v100:2|v100|4|1-00:00:00|40|384000|up" ;;
esac
SH
printf '#!/bin/sh\necho physics\necho chemistry\n' >launcher/sacctmgr
printf '#!/bin/sh\necho "MPI plugin types are..." >&2\necho "pmi2" >&2\n' >launcher/srun
mkdir -p root/sys/class/infiniband/mlx5_0 root/proc/driver/nvidia root/etc scratch
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5' >root/proc/driver/nvidia/version
echo 'PRETTY_NAME="Rocky Linux 9.4"' >root/etc/os-release
chmod +x launcher/*
check() { env PATH="$work/launcher:$PATH" SITE_ROOT="$work/root" SCRATCH="$work/scratch" FSDP_SITE="$work/found.sh" MODULESHOME="$work/modules" LMOD_PKG= "$@" 2>&1; }
expect 0 "written: $work/found.sh" check "$FSDP_SOURCE/scripts/site-check"
for line in ': "${GPUS:=4}"' ': "${PARTITION:=gpu}"' ': "${ACCOUNT:=chemistry}"' "OUT_DIR:=$work/scratch/fsdp/runs" "a100 ib v100" "InfiniBand: mlx5_0" \
    "srun --mpi     pmi2;" "550.54.15" "Rocky Linux 9.4" "375 GiB"; do
    grep -qF -e "$line" found.sh || { cat found.sh; fail "site-check did not find: $line"; }
done
expect 0 "--account=chemistry --partition=gpu --gpus-per-node=4" run slurm/train.sh FSDP_SITE="$work/found.sh" OUT_DIR= -- --show
expect 1 "is there" check "$FSDP_SOURCE/scripts/site-check"
expect 0 "written" check "$FSDP_SOURCE/scripts/site-check" --force
[[ -e found.sh.old ]] || fail "the former file is gone"
rm launcher/sinfo
cat >launcher/pbsnodes <<'SH'
#!/bin/sh
for node in x1 x2; do printf '%s\n     resources_available.ncpus = 64\n     resources_available.ngpus = 4\n' $node; done
SH
printf '#!/bin/sh\ncase $1 in -Q) printf "Queue Max Tot Ena Str\\n---\\ndebug 0 0 yes yes\\nprod 0 0 yes yes\\n" ;; *) echo "pbs_version = 2022" ;; esac\n' >launcher/qstat
mkdir -p root/sys/class/cxi/cxi0
chmod +x launcher/*
# Only what lies in the launcher's folder is found: this machine may have another scheduler.
expect 0 ': "${CPUS:=64}"' check PATH="$work/launcher:$work/plain" "$FSDP_SOURCE/scripts/site-check" --print
for line in ': "${GPUS:=4}"' ': "${PARTITION:=debug}"' 'NCCL_NET' 'UNKNOWN: PBS does not tell whose projects'; do
    [[ $output == *"$line"* ]] || { echo "$output"; fail "site-check did not find: $line"; }
done
echo "as expected"
