#!/bin/bash
# The tutorials' comparisons on the nodes of this job, with a page of what they show here (docs/lessons.md). A job that is
# stopped early ends with 85: submit it again, runs that are done are kept. Else with scripts/lessons' code: 0 all done, 1 a
# run failed.
#
#   sbatch -A ACCOUNT -p PARTITION slurm/lessons.sh                   # from the project or the unpacked tarball
#   sbatch -N 2 --gpus-per-node=4 slurm/lessons.sh --only 4,5         # some of them, on two nodes
#   sbatch --export=ALL,NUM_LAYERS=32,EMBED_SIZE=4096,NUM_HEADS=32,BATCH_SIZE=1 slurm/lessons.sh
#
# One task is one rank: one per GPU, or one per socket without GPUs. Variables, all with a default:
#   OUT_DIR       receives lessons.md, runs, logs and pictures, shared by all nodes       runs/lessons
#   NUM_LAYERS, NUM_HEADS, EMBED_SIZE, SEQ_LEN, BATCH_SIZE, PRECISION, STEPS, REPEATS, MEMORY, MAX_BATCH, DEVICE,
#   TRAIN_DATA, VOCAB_SIZE   as scripts/lessons --help tells
#   FSDP_BIN      folder of the programs        build/bin or bin below the folder of submission or FSDP_HOME, else on PATH
#   FSDP_HOME     folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   SRUN_MPI      what to give to srun --mpi    found out; the choice must fit the MPI of the programs
#   LAUNCHER      a launch command in place of srun, for example "mpiexec -n 8"
#
#SBATCH --job-name=lessons
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
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
need_slurm
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-finetune
choose_launcher
export RANKS=${SLURM_NTASKS:?Slurm says no number of tasks}
export RANKS_PER_NODE=$((RANKS / ${SLURM_JOB_NUM_NODES:-1}))
run_lessons "$@"
