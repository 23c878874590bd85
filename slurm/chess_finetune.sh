#!/bin/bash
# Fine-tune CodeLlama-7b on chess games with FSDP on one node of 4 GPUs. Needs no internet; stops before the time limit,
# requeues itself and goes on. chess_download.sh fetches model and games; chess_pipeline.sh does everything in order.
#
#   sbatch -A ACCOUNT slurm/chess_finetune.sh
#   BATCH_SIZE_PER_DEVICE=4 sbatch slurm/chess_finetune.sh --gradient_checkpointing   # options go to fsdp-finetune
#   RUN_NAME=two sbatch --constraint=a100 -N 2 slurm/chess_finetune.sh    # options of sbatch win over those below
#
# One task is one rank, one per GPU. Variables, all with a default:
#   TOTAL_BATCH_SIZE        games per optimizer step over all GPUs; the accumulation follows   64
#   BATCH_SIZE_PER_DEVICE   games per GPU at once: as many as fit, it does not change the training   1
#   MODEL      directory, or ORG/NAME in the Hugging Face cache (HF_HOME, HF_HUB_CACHE)   codellama/CodeLlama-7b-hf
#   DATA       training games: HDF5, JSON Lines or Parquet, or ORG/NAME in the cache   what chess_download.sh makes:
#              OUT_DIR/data/strategic_game_chess.h5
#   VAL_DATA   the same, or NAME=PATH,...; empty: none    FSDP_HOME/data/chess/validation.jsonl
#   PLAN       file with further options (fsdp-finetune --config); a variable that is set wins over it
#   LEARNING_RATE, MAX_TRAINING_STEPS, MAX_SEQ_LENGTH    1e-5, one pass over the games, 512
#   OPTIMIZER  adamw8bit, adafactor, ... (docs/methods.md)   adamw
#   FREEZE, TRAIN_ONLY   what stays as it is, or all that is trained: 'model.layers.[0-9].*'   all is trained
#   CHILD_TUNING         f or d              off
#   LORA_RANK, LORA_ALPHA   train adapters of this rank, which count alpha / rank times; the result is RUN/adapter   off
#   QUANTIZE   nf4: the weights beside adapters in 4 bits, for small GPUs (docs/methods.md)   none
#   OFFLOAD    cpu or nvme:DIR: the optimizer in host memory or on a disk of each node (docs/offload.md)   none
#   PRECISION  bf16 float32 fp16             bf16; float32 on a CPU
#   DEVICE     auto cuda cpu                 auto
#   OUT_DIR    where runs go, shared by all nodes        runs
#   RUN_NAME   the run; the same name again continues it chess-JOBID
#   FSDP_OPT_NAME   any other option of fsdp-finetune: FSDP_OPT_WARMUP_RATIO=0.05 is --warmup-ratio=0.05
#   SAVE_INTERVAL_MINUTES, KEEP_LAST         30, 2: for stops that come without a signal
#   SAVE_FINAL_HF   directory that transformers opens, written at the end; empty: none   OUT_DIR/RUN_NAME/hf
#   FSDP_HOME  folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   FSDP_BIN   folder of the programs        build/bin or bin below the folder of submission or FSDP_HOME, else on PATH
#   SRUN_MPI   what to give to srun --mpi    found out; the choice must fit the MPI of the programs
#   LAUNCHER   a launch command in place of srun, for example "mpiexec -n 4"
#   MAX_IDLE_RESTARTS   give up after this many restarts in a row without a newer checkpoint     2
#
#SBATCH --job-name=chess_finetune
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --constraint=gpu80
#SBATCH --cpus-per-task=8
#SBATCH --mem=256G
#SBATCH --time=12:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@600
# The signal comes up to 20 s early and, without "B:", to the ranks: they save (about 80 GB, through the node's memory)
# and end with 85.
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
# shellcheck source=../scripts/jobs/chess.sh
source "$FSDP_HOME/scripts/jobs/chess.sh"
need_slurm
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-finetune
chess_arguments=("$@")
chess_settings "chess-$SLURM_JOB_ID"
train_job chess_options "$@"
