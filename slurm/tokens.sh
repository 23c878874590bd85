#!/bin/bash
# Encode texts, conversations or columns of Parquet to a token file (fsdp-download tokens) by the processes of a job, or of an
# array of jobs, which share the work. What is done stays done: a job that runs out of time requeues itself and goes on, and
# so does the same submission after any failure. Needs no GPU and no internet.
#
#   INPUT=web/ TOKENIZER=/scratch/me/Qwen3-8B OUTPUT=web.h5 sbatch -A ACCOUNT -N 4 slurm/tokens.sh
#   INPUT="a.jsonl b.jsonl" TOKENIZER=gpt2 OUTPUT=all.h5 sbatch slurm/tokens.sh --stream --seq-len 2048
#   INPUT=ORG/NAME TOKENIZER=gpt2 OUTPUT=all.h5 sbatch --array=0-31 -n 1 slurm/tokens.sh    # small jobs, started as cores get free
#
# Arguments go to fsdp-download tokens. Variables:
#   INPUT         files, folders or ORG/NAME in the Hugging Face cache, with blanks between; quotes hold
#   TOKENIZER     a model's folder, ORG/NAME in the cache, or gpt2
#   OUTPUT        HDF5 file to write; OUTPUT.parts beside it holds what is done, for all jobs of one OUTPUT
#   SEQ_LEN, FIELD, THREADS    as the options of these names      THREADS: the cores of a task
#   MAX_RESTARTS  of a job that is stopped by its time limit    20
#   FSDP_BIN      folder of the programs        build/bin or bin below the folder of submission, else on PATH
#   FSDP_HOME     folder of the project or the unpacked tarball   where the submitted script is, or the folder of submission
#   LAUNCHER      a launch command in place of srun, for example "mpiexec -n 8"
#
#SBATCH --job-name=tokens
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@60
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
# shellcheck source=../scripts/jobs/tokens.sh
source "$FSDP_HOME/scripts/jobs/tokens.sh"
need_slurm
cd "${SLURM_SUBMIT_DIR:-.}"
find_programs fsdp-download

# An option that is given as an argument of this script wins over its variable.
arguments_given "$@"
arguments=("$@")
if [[ -n ${LAUNCHER:-} ]]; then
    read -ra launch <<<"$LAUNCHER"
else
    # The processes know each other by files alone, and none is ended because of others.
    launch=(srun --mpi=none --wait=0 --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"})
fi
THREADS=${THREADS-${SLURM_CPUS_PER_TASK-}}
signalled=''
trap 'signalled=SIGTERM' TERM
trap : USR1 # sent to a batch script where no step runs yet
encode_tokens
if ((code != 85)); then die "fsdp-download ended with code $code" "$code"; fi
if ((${SLURM_RESTART_COUNT:-0} >= ${MAX_RESTARTS:-20})); then die "not requeued after $SLURM_RESTART_COUNT restarts; submit again to go on" 85; fi
if called_off; then die "cancelled, preempted or requeued$when: not requeued; submit again to go on" 85; fi
say "stopped, requeueing"
scontrol requeue "$slurm_job" || die "this Slurm did not requeue; submit again to go on" 85
