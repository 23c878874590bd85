#!/bin/bash
# Train minGPT with FSDP on Slurm. Needs no internet; stops before the time limit, requeues itself and goes on.
#
#   sbatch -A ACCOUNT -p PARTITION slurm/mingpt.sh                              # from the project or the unpacked tarball
#   sbatch -N 2 --gpus-per-node=4 --export=ALL,SHARDING=hybrid-full-shard slurm/mingpt.sh
#   NUM_LAYERS=24 sbatch -N 4 slurm/mingpt.sh --clip-grad-norm 1.0 --seed 3     # other options go to fsdp-finetune
#
# One task is one rank: one per GPU, or one per socket without GPUs. Variables, all with a default:
#   FSDP_HOME  folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   FSDP_BIN   folder of the programs        build/bin or bin below the folder of submission or FSDP_HOME, else on PATH
#   DATA_DIR   train.h5 and validation.h5    data/shakespeare below the folder of submission or FSDP_HOME
#   OUT_DIR    where runs go, shared by all nodes        runs
#   RUN_NAME   the run; the same name again continues it mingpt-JOBID
#   MODEL, NUM_LAYERS, NUM_HEADS, EMBED_SIZE, SEQ_LEN    mingpt, 12, 12, 768, 256
#   BATCH_SIZE sequences per rank and micro-batch; TOTAL_BATCH_SIZE per optimizer step (empty: BATCH_SIZE x ranks)
#   MAX_EPOCHS, LR, OPTIMIZER   10, 3e-4, adamw (docs/methods.md has the others)
#   FREEZE, TRAIN_ONLY, CHILD_TUNING   what is trained (docs/methods.md)   all of it
#   OFFLOAD    cpu or nvme:DIR: the optimizer in host memory or on a disk of each node (docs/offload.md)   none
#   SHARDING   full-shard grad-shard optimizer-shard no-shard hybrid-full-shard hybrid-grad-shard
#   PRECISION  bf16 float32 fp16
#   DEVICE     auto cuda cpu
#   FSDP_OPT_NAME   any other option of fsdp-finetune: FSDP_OPT_WARMUP_RATIO=0.05 is --warmup-ratio=0.05
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
unset CDPATH && unset -f cd # with these cd prints, and may go elsewhere
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#\(SBATCH\|PBS\)/!s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac

# Slurm runs a copy of this file; the shared scripts are found through the path of the submitted file.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} # the number alone may be the whole array's
submitted=$(scontrol show job "${job:-${SLURM_JOB_ID:-0}}" 2>/dev/null | sed -n '/^ *Command=/{s///p;q}' || true)
while [[ $submitted == *' '* && ! -f $submitted ]]; do submitted=${submitted% *}; done # without the arguments
submitted=${submitted%/*}
for FSDP_HOME in "${FSDP_HOME:-}" "$(dirname "$0")/.." "$submitted/.." "${SLURM_SUBMIT_DIR:-.}"{,/..}; do
    if [[ -n $FSDP_HOME && -r $FSDP_HOME/scripts/jobs/slurm.sh ]]; then break; fi
done
FSDP_HOME=$(cd "$FSDP_HOME" && pwd)
# shellcheck source=../scripts/jobs/slurm.sh
source "$FSDP_HOME/scripts/jobs/slurm.sh" || { echo "submit from the project's folder, or set FSDP_HOME to it" && exit 2; }
# shellcheck source=../scripts/jobs/train.sh
source "$FSDP_HOME/scripts/jobs/train.sh"
need_slurm
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-finetune
mingpt_options "$SLURM_JOB_ID" "$@"
choose_launcher
train "$@"
