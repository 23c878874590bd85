#!/bin/bash
# Check a GPU node in its first half hour: numbers against PyTorch, speed, ranks, memory, time by kernel (docs/gpu-check.md). Ends
# with scripts/gpu-check's code: 0 all passed, 1 could not run, 3 a check failed.
#
#   sbatch -A ACCOUNT -p PARTITION slurm/gpu_check.sh                 # from the project or the unpacked tarball
#   sbatch --gres=gpu:2 slurm/gpu_check.sh                            # NCCL between two GPUs, not on one
#   STAGES=contact sbatch --time=00:06:00 slurm/gpu_check.sh          # one stage; other options go to scripts/gpu-check
#   sbatch --export=ALL,FSDP_PYTHON=/sw/pytorch/bin/python3 slurm/gpu_check.sh
#
# Variables, all with a default:
#   STAGES        of contact, speed, ranks, rest, sanitizers, profile   all, 35 minutes at most
#   OUT_DIR       receives gpu-check.json, gpu-check.md and logs/       runs/gpu-check
#   DEVICE        cuda, or cpu for a rehearsal  cuda
#   FSDP_PYTHON   a python3 with the PyTorch that the programs were built with   FSDP_HOME/.deps/venv's, else on PATH
#   FSDP_BIN      folder of the programs        build/bin or bin below the folder of submission or FSDP_HOME, else on PATH
#   FSDP_HOME     folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   MPIEXEC       starts two ranks on the node  the one beside the programs, else on PATH
#   TMPDIR        room for 12 GB on the node    /tmp
#
#SBATCH --job-name=gpu_check
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=00:40:00
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
need_slurm
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-finetune
check_gpu "$@"
