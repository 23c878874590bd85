#!/bin/bash
# Train minGPT with FSDP on Slurm. Needs no internet; stops before the time limit, requeues itself and goes on.
#
#   sbatch -A ACCOUNT -p PARTITION slurm/mingpt.sh                              # from the project or the unpacked tarball
#   sbatch -N 2 --gpus-per-node=4 --export=ALL,SHARDING=hybrid-full-shard slurm/mingpt.sh
#   NUM_LAYERS=24 sbatch -N 4 slurm/mingpt.sh --clip-grad-norm 1.0 --seed 3     # other options go to fsdp-finetune
#
# One task is one rank: one per GPU, or one per socket without GPUs. Variables, all with a default:
#   FSDP_BIN   folder of the programs        build/bin or bin below the folder of submission, else on PATH
#   DATA_DIR   train.h5 and validation.h5    data/shakespeare below the folder of submission
#   OUT_DIR    where runs go, shared by all nodes        runs
#   RUN_NAME   the run; the same name again continues it mingpt-JOBID
#   MODEL, NUM_LAYERS, NUM_HEADS, EMBED_SIZE, SEQ_LEN    mingpt, 12, 12, 768, 256
#   BATCH_SIZE sequences per rank and micro-batch; TOTAL_BATCH_SIZE per optimizer step (empty: BATCH_SIZE x ranks)
#   MAX_EPOCHS, LR   10, 3e-4
#   SHARDING   full-shard grad-shard no-shard hybrid-full-shard hybrid-grad-shard
#   PRECISION  bf16 float32 fp16
#   DEVICE     auto cuda cpu
#   SAVE_INTERVAL_MINUTES, KEEP_LAST         15, 3: for stops that come without a signal
#   SRUN_MPI   what to give to srun --mpi    found out below; the choice must fit the MPI of the programs
#   LAUNCHER   a launch command in place of srun, for example "mpiexec -n 8"
#   MAX_IDLE_RESTARTS   give up after this many restarts in a row without a newer checkpoint     2
#
#SBATCH --job-name=mingpt
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
# The signal comes up to 20 s early and, without "B:", to the ranks: they save and end with 85.
set -euo pipefail

say() { printf '%s %s: %s\n' "$(date +%FT%T)" "${SLURM_JOB_NAME:-mingpt}" "$*"; }
die() { say "$1"; exit "${2:-1}"; }

[[ -n ${SLURM_JOB_ID:-} ]] || die "this is a Slurm batch script: submit it with sbatch" 2
cd "${SLURM_SUBMIT_DIR:-.}"
if [[ -z ${FSDP_BIN:-} ]]; then
    for FSDP_BIN in build/bin bin; do [[ -x $FSDP_BIN/fsdp-finetune ]] && break; done
    [[ -x $FSDP_BIN/fsdp-finetune ]] || FSDP_BIN=$(dirname "$(command -v fsdp-finetune || echo none/x)")
fi
[[ -x $FSDP_BIN/fsdp-finetune ]] || die "no fsdp-finetune in build/bin or bin below $PWD, nor on PATH: set FSDP_BIN" 2
FSDP_BIN=$(cd "$FSDP_BIN" && pwd)
DATA_DIR=${DATA_DIR:-data/shakespeare}
OUT_DIR=${OUT_DIR:-runs}
RUN_NAME=${RUN_NAME:-mingpt-$SLURM_JOB_ID}
run_dir=$OUT_DIR/$RUN_NAME

# --- options of the run; one that is given as an argument of this script wins over its variable ----------------------
given=" $* "
options=()
option() { # --name value
    if [[ -n $2 && $given != *" $1 "* && $given != *" $1="* ]]; then options+=("$1" "$2"); fi
}
option --model "${MODEL:-mingpt}"
option --num-layers "${NUM_LAYERS-12}"
option --num-heads "${NUM_HEADS-12}"
option --embed-size "${EMBED_SIZE-768}"
option --seq-len "${SEQ_LEN-256}"
option --train-data "$DATA_DIR/train.h5"
option --val-data "$DATA_DIR/validation.h5"
option --batch-size "${BATCH_SIZE-4}"
option --total-batch-size "${TOTAL_BATCH_SIZE-}"
option --max-epochs "${MAX_EPOCHS-10}"
option --lr "${LR-3e-4}"
option --sharding "${SHARDING-full-shard}"
option --precision "${PRECISION-bf16}"
option --device "${DEVICE-auto}"
option --save-interval-minutes "${SAVE_INTERVAL_MINUTES-15}"
option --keep-last "${KEEP_LAST-3}"
option --out-dir "$OUT_DIR"
option --run-name "$RUN_NAME"

# --- how srun starts MPI ranks ---------------------------------------------------------------------------------------
# A wrong choice starts N jobs of one rank each; fsdp-finetune notices that and ends. Of what this Slurm offers, take the
# first that fits the MPI library of the programs and really starts a task (pmix may be listed without its library).
# Seen with Slurm 22.05: MPICH (Debian's 4.0.2 and the 5.0.2 wheel) works with pmi2, needs no further setting, and
# ends up as ranks of size 1 with none, openmpi and cray_shasta.
choose_srun_mpi() {
    local offered libraries name
    local -a fitting
    offered=" $(srun --mpi=list 2>&1 | tr -s ' \n\t,:' ' ') "
    libraries=$(ldd "$FSDP_BIN/fsdp-finetune" | grep -o 'libmpi[^ ]*' || true)
    case $libraries in
        *libmpi_cray* | *libmpi_gnu* | *libmpi_intel* | *libmpi_nvidia* | *libmpi_amd*) fitting=(cray_shasta pmi2) ;;
        *libmpi.so.40* | *libmpi_cxx*) fitting=(pmix pmix_v5 pmix_v4 pmix_v3) ;;
        *) fitting=(pmi2 pmix cray_shasta) ;;
    esac
    for name in "${fitting[@]}"; do
        if [[ $offered == *" $name "* ]] && srun --mpi="$name" --nodes=1 --ntasks=1 true >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    return 1
}
if [[ -n ${LAUNCHER:-} ]]; then
    read -ra launch <<<"$LAUNCHER"
else
    if [[ -z ${SRUN_MPI:-} ]]; then
        SRUN_MPI=$(choose_srun_mpi) || die "none of the types of srun --mpi=list fits the MPI of $FSDP_BIN/fsdp-finetune: set SRUN_MPI or LAUNCHER" 2
    fi
    # --wait: when a rank has ended, the others have a minute to follow. --kill-on-bad-exit would turn 85 into 143.
    launch=(srun --mpi="$SRUN_MPI" --wait=60 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"})
fi
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}; fi

# --- go on where the run's newest checkpoint is ----------------------------------------------------------------------
newest_step() { # 0 where there is no checkpoint
    local name
    name=$(readlink "$run_dir/checkpoints/latest" || true)
    name=${name%/}
    name=${name##*step-}
    echo $((10#${name:-0}))
}
mkdir -p "$run_dir" || die "OUT_DIR=$OUT_DIR is not writable"
if [[ -e $run_dir/checkpoints/latest ]]; then option --restart-checkpoint-file latest; fi

# Crash-loop guard: $run_dir/starts holds the step of the last start and how many starts in a row were at it.
step=$(newest_step)
last_step=-1 idle=0
if [[ -s $run_dir/starts ]]; then read -r last_step idle <"$run_dir/starts"; fi
idle=$((step == last_step ? idle + 1 : 0))
echo "$step $idle" >"$run_dir/starts"

trap : TERM USR1 # this shell outlives a signal to the whole job, to requeue it
say "run $run_dir from step $step on ${SLURM_JOB_NUM_NODES:-1} node(s), ${SLURM_NTASKS:-?} ranks, start by ${launch[*]}"
code=0
"${launch[@]}" "$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" || code=$?
if ((code != 85)); then
    if ((code == 0)); then rm -f "$run_dir/starts"; fi
    die "fsdp-finetune ended with code $code" "$code"
fi

# --- stopped early with a good checkpoint ----------------------------------------------------------------------------
step=$(newest_step)
read -r last_step idle <"$run_dir/starts"
if ((step == last_step && idle >= ${MAX_IDLE_RESTARTS:-2})); then
    die "step $step again after $((idle + 1)) starts: not requeued, since the run makes no progress" 1
fi
say "stopped at step $step, requeueing"
scontrol requeue "$SLURM_JOB_ID" || die "this Slurm did not requeue; submit again with RUN_NAME=$RUN_NAME to go on" 85
