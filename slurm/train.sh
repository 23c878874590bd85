#!/bin/bash
# Train or fine-tune any model on any data, with any option of fsdp-finetune. Needs no internet; stops before the time
# limit, requeues itself and goes on. Started with bash it submits itself as the site file and the variables say
# (docs/clusters.md, "Your site"); with sbatch it takes sbatch's options.
#
#   MODEL=/scratch/me/Qwen3-8B DATA=chats.jsonl bash slurm/train.sh --seq-len 2048 --gradient-checkpointing
#   bash slurm/train.sh --show --model mingpt --train-data data/shakespeare/train.h5      # checks, prints the whole command
#   ARRAY="lr=1e-5,3e-5,1e-4 seed=1,2" MODEL=... DATA=... bash slurm/train.sh             # six jobs of one array
#   sbatch -A ACCOUNT -N 2 --gpus-per-node=4 slurm/train.sh --model ... --train-data ...
#
# One task is one rank: one per GPU, or one per socket without GPUs. Options go to fsdp-finetune and win over variables.
# Variables of the run:
#   MODEL      directory, ORG/NAME in the cache of the Hugging Face hub (HF_HOME, HF_HUB_CACHE), or mingpt
#   DATA, VAL_DATA   token file, texts, or ORG/NAME in the cache; VAL_DATA also NAME=PATH,...
#   BATCH_SIZE, TOTAL_BATCH_SIZE, MAX_EPOCHS, MAX_STEPS, LR, SEQ_LEN, OPTIMIZER, FREEZE, TRAIN_ONLY, CHILD_TUNING, OFFLOAD,
#   SHARDING, DEVICE   as the options of these names      the defaults are fsdp-finetune's
#   PRECISION  bf16 float32 fp16             bf16; float32 on a CPU
#   FSDP_OPT_NAME   any other option: FSDP_OPT_WARMUP_RATIO=0.05 is --warmup-ratio=0.05
#   PLAN       file with options (fsdp-finetune --config); a variable that is set wins over it
#   OUT_DIR    where runs go, shared by all nodes        runs
#   RUN_NAME   the run; the same name again continues it      train-JOBID
#   ARRAY      NAME=VALUE,VALUE... of options, with blanks between: one run of a job array for each combination, in
#              OUT_DIR/RUN_NAME/NAME-VALUE,...
# Variables of the nodes:
#   STAGE      folder on the disk of each node, such as '$TMPDIR': weights and tokens are copied there first, checked, once
#              per node; what an earlier job left whole is used again
#   CONTAINER  Apptainer image with the programs (packaging/README.md); CONTAINER_BIND, CONTAINER_OPTIONS, HOST_MPI as
#              scripts/jobs/container/run tells
#   SRUN_MPI   what to give to srun --mpi    found out; the choice must fit the MPI of the programs
#   LAUNCHER   a launch command in place of srun, for example "mpiexec -n 8"
#   MAX_IDLE_RESTARTS   give up after this many restarts in a row without a newer checkpoint     2
#   FSDP_HOME  folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   FSDP_BIN   folder of the programs        build/bin or bin below the folder of submission or FSDP_HOME, else on PATH
#   FSDP_SITE  the site file, empty: none    ~/.config/fsdp/site.sh
# Variables of the submission by bash: ACCOUNT, PARTITION, QOS, NODES, GPUS (per node, one task each), CONSTRAINT, WALLTIME
#   (H:M:S), MAIL (address), SUBMIT (further options of sbatch; quotes hold)
#
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@300
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
if [[ -z ${SLURM_JOB_ID:-} || ${1:-} == --show ]]; then submit_train "$@"; fi
tell_of_this_job "$SLURM_JOB_ID" SLURM_JOB_ID
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-finetune
train_settings "train-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"
take_task "${SLURM_ARRAY_TASK_ID:-}"
train_job train_options "$@"
