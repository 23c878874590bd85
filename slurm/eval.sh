#!/bin/bash
# Benchmarks of one or several checkpoints (fsdp-eval --tasks), one after the other, and one table at the end. What they read
# is fetched before, on a node with internet: fsdp-download --tasks NAME... Results that are there are kept, so that a job
# that ran out of time goes on when it is submitted again.
#
#   MODELS="base runs/chat" TASKS="hellaswag arc_easy" sbatch -A ACCOUNT -p PARTITION slurm/eval.sh
#   MODELS="$(echo runs/chat/checkpoints/step-*)" TASKS=gsm8k sbatch slurm/eval.sh --apply-chat-template
#
# One task is one rank: one per GPU. Arguments go to fsdp-eval. Variables:
#   MODELS        checkpoints, runs, model folders or ORG/NAME in the cache, with blanks between; quotes hold
#   TASKS         names of benchmarks, task files or folders, with blanks between
#   OUT_DIR       where results go: NAME.json of each checkpoint, table.md       evals
#   NUM_FEWSHOT, LIMIT, BATCH_SIZE, PRECISION, DEVICE    as the options of these names      fsdp-eval's; bf16
#   FSDP_BIN      folder of the programs        build/bin or bin below the folder of submission, else on PATH
#   FSDP_HOME     folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   SRUN_MPI      what to give to srun --mpi    found out; the choice must fit the MPI of the programs
#   LAUNCHER      a launch command in place of srun, for example "mpiexec -n 8"
#
#SBATCH --job-name=eval
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
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
# shellcheck source=../scripts/jobs/eval.sh
source "$FSDP_HOME/scripts/jobs/eval.sh"
need_slurm
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-eval
OUT_DIR=${OUT_DIR:-evals}
PRECISION=${PRECISION-bf16}

# An option that is given as an argument of this script wins over its variable.
arguments_given "$@"
arguments=("$@")
choose_launcher
run_evaluations
