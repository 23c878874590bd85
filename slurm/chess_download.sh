#!/bin/bash
# Fetch CodeLlama-7b and chess games from the Hugging Face hub and make a token file of the games, for nodes without
# internet. Run it on a login node, or submit it to a partition with internet (data transfer). What is there is left
# alone; started again it goes on where it was stopped.
#
#   bash slurm/chess_download.sh
#   HF_HOME=/scratch/me/hf MAX_FILES=4 sbatch -p datamover slurm/chess_download.sh
#   bash slurm/chess_download.sh --check      # only says whether all is there: 0, or 3 if not; needs no network
#
# Variables, all with a default:
#   MODEL      directory, or ORG/NAME on the hub                  codellama/CodeLlama-7b-hf (13.5 GB)
#   DATASET    directory, or ORG/NAME on the hub                  laion/strategic_game_chess
#   MAX_FILES  files of the data set, about 0.5 GB and 2 million games each; 0: all      1
#   MAX_GAMES  games to put into the token file; 0: all           0
#   DATA       other training data that is there: then none is fetched
#   OUT_DIR    where runs go; the token file is OUT_DIR/data/NAME.h5     runs
#   HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, https_proxy ...    as fsdp-download reads them; homes are often too
#              small for the cache
#   FSDP_HOME  folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   FSDP_BIN   folder of the programs        build/bin or bin below the folder of submission or FSDP_HOME, else on PATH
#   MAX_RESTARTS   of a job that is stopped by its time limit    20
#
#SBATCH --job-name=chess_download
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
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
# shellcheck source=../scripts/jobs/chess.sh
source "$FSDP_HOME/scripts/jobs/chess.sh"
# shellcheck source=../scripts/jobs/chess_download.sh
source "$FSDP_HOME/scripts/jobs/chess_download.sh"
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-download
chess_settings chess

# In a job of its own the program runs as a job step, which receives the signal; in a shell or in a step of another job
# the script runs it directly.
single=()
if [[ ${SLURM_JOB_NAME:-} == chess_download* ]]; then single=(srun --ntasks=1 --mpi=none); fi
signalled=''
trap 'signalled=SIGTERM' TERM
trap : USR1

# download_stopped WHAT CODE
download_stopped() {
    if (($2 != 85 || ${#single[@]} == 0)); then die "$1: fsdp-download ended with code $2; start again to go on" "$2"; fi
    if ((${SLURM_RESTART_COUNT:-0} >= ${MAX_RESTARTS:-20})); then die "$1: not requeued after $SLURM_RESTART_COUNT restarts" 1; fi
    if called_off; then die "$1: cancelled, preempted or requeued$when: not requeued; submit again to go on" 85; fi
    say "$1: stopped, requeueing"
    scontrol requeue "$slurm_job" || die "this Slurm did not requeue; submit again to go on" 85
}
chess_download "$@"
