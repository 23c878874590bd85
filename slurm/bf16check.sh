#!/bin/bash
# Is bf16 native on every rank of an allocation? Takes a minute of it; ends with fsdp-bf16check's code: 0 native on all
# ranks, 3 emulated or absent on some.
#
#   sbatch -A ACCOUNT -p PARTITION slurm/bf16check.sh                      # from the project or the unpacked tarball
#   sbatch -N 8 --gpus-per-node=4 slurm/bf16check.sh --size-mb 256         # other options go to fsdp-bf16check
#   check=$(sbatch --parsable -N 2 --gpus-per-node=4 slurm/bf16check.sh)
#   sbatch -N 2 --gpus-per-node=4 --dependency=afterok:$check slurm/mingpt.sh     # trains only if the check says native
#   sbatch -N 2 --gpus-per-node=4 --exclude="$(cat bf16check-exclude)" slurm/mingpt.sh    # without the bad hosts
#
# One task is one rank: one per GPU, or one per socket without GPUs. Variables, all with a default:
#   FSDP_BIN      folder of the programs        build/bin or bin below the folder of submission, else on PATH
#   DEVICE        auto cuda cpu                 auto
#   SIZE_MB       MiB of the all-reduced tensor; empty: the program's choice
#   EXCLUDE_FILE  receives the hosts to do without, as sbatch --exclude takes them      bf16check-exclude; empty: none
#   FSDP_HOME     folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   SRUN_MPI      what to give to srun --mpi    found out; the choice must fit the MPI of the programs
#   LAUNCHER      a launch command in place of srun, for example "mpiexec -n 8"
#
#SBATCH --job-name=bf16check
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=00:05:00
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
find_programs fsdp-bf16check

# An option that is given as an argument of this script wins over its variable.
arguments_given "$@"
option --device "${DEVICE-auto}"
option --size-mb "${SIZE_MB-}"
option --exclude-file "${EXCLUDE_FILE-bf16check-exclude}"

choose_launcher
say "${SLURM_JOB_NUM_NODES:-1} node(s), ${SLURM_NTASKS:-?} ranks, start by ${launch[*]}"
code=0
"${launch[@]}" "$FSDP_BIN/fsdp-bf16check" "${options[@]}" "$@" || code=$?
die "fsdp-bf16check ended with code $code" "$code"
