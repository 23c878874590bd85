#!/bin/bash
# The whole chess fine-tune, to be started on a login node:
#   download -> bf16check -> memprobe -> finetune -> convert -> eval
# The download runs here, the others are submitted, each after the one before it ended well (afterok; the fine-tune may
# requeue itself in between). Stages whose results hold are left out, so starting it again is safe.
#
#   SBATCH_ACCOUNT=ACCOUNT bash slurm/chess_pipeline.sh [OPTIONS of fsdp-finetune, such as --gradient_checkpointing]
#   bash slurm/chess_pipeline.sh --dry-run    # says what would be done
#   bash slurm/chess_pipeline.sh --cancel     # all its jobs, whatever they have become
#
# Variables: those of chess_finetune.sh and chess_download.sh (RUN_NAME is chess), and
#   DOWNLOAD   here, sbatch (as a job: where compute nodes have internet) or no     here
#   ACCOUNT, PARTITION, QOS, CONSTRAINT   for all jobs, for those with GPUs: the site file's
#   SUBMIT, SUBMIT_DOWNLOAD, SUBMIT_FINETUNE, SUBMIT_GPU, SUBMIT_CPU    further options for sbatch: for all jobs, for one,
#              for the other jobs with GPUs (bf16check, memprobe, eval), for those without (convert); SBATCH_ACCOUNT and
#              its like work as well
#   HF_DTYPE   of the weights in OUT_DIR/RUN_NAME/hf     bf16
#   MEMPROBE_ARGS  further options for fsdp-memprobe, such as --calibration runs
#   EVAL_ARGS  further options for fsdp-eval
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
# shellcheck source=../scripts/jobs/chess_stages.sh
source "$FSDP_HOME/scripts/jobs/chess_stages.sh"
if [[ ${1:-} == --stage ]]; then # a job of the chain
    cd "${SLURM_SUBMIT_DIR:-.}"
    find_programs fsdp-finetune
    chess_settings chess
    export HF_HUB_OFFLINE=1
    "stage_$2" "${@:3}"
    exit
fi
[[ -z ${SLURM_JOB_ID:-} ]] || die "start this on a login node, it submits the jobs itself" 2
scheduler=slurm dry_run=0
if [[ ${1:-} == --dry-run ]]; then dry_run=1 && shift; fi
((dry_run)) || command -v sbatch >/dev/null || die "no sbatch here" 2
if [[ ${1:-} == --cancel ]]; then
    chess_settings chess
    chain_cancel
    exit
fi
find_programs fsdp-finetune
chess_settings chess

# submit STAGE AFTER ARGUMENTS: submits a stage and sets job
submit() {
    local words=(--parsable) script="$FSDP_HOME/slurm/chess_pipeline.sh" more
    local gpus=(--nodes=1 --ntasks-per-node=4 --cpus-per-task=8 --mem=128G --time=01:00:00)
    if [[ ${DEVICE:-auto} != cpu ]]; then gpus+=(--gres=gpu:4 --constraint="${CONSTRAINT:-gpu80}"); fi
    words+=(${ACCOUNT:+--account="$ACCOUNT"} ${PARTITION:+--partition="$PARTITION"} ${QOS:+--qos="$QOS"})
    if [[ -n $2 ]]; then words+=(--dependency="afterok:$2" --kill-on-invalid-dep=yes); fi
    case $1 in
        download) script=$FSDP_HOME/slurm/chess_download.sh more=${SUBMIT_DOWNLOAD:-} ;;
        finetune)
            script=$FSDP_HOME/slurm/chess_finetune.sh more=${SUBMIT_FINETUNE:-}
            words+=(${CONSTRAINT:+--constraint="$CONSTRAINT"}) ;;
        convert)
            words+=(--job-name=chess_convert --nodes=1 --ntasks=1 --cpus-per-task=4 --mem=32G --time=01:00:00)
            more=${SUBMIT_CPU:-} ;;
        *) words+=(--job-name="chess_$1" "${gpus[@]}") more=${SUBMIT_GPU:-} ;;
    esac
    words+=(--output=%x-%j.out)
    split_words "${SUBMIT:-} $more"
    words+=("${words_of[@]}" "$script")
    case $1 in download | finetune) ;; *) words+=(--stage "$1") ;; esac
    if [[ $1 != download ]]; then words+=("${@:3}"); fi
    if ((dry_run)); then
        echo "sbatch $(join_words "${words[@]}")"
        job="(${1^^})"
        return
    fi
    job=$(sbatch "${words[@]}") || return
    job=${job%%;*} # sbatch prints JOB;CLUSTER in a multi-cluster setup
}
watch() {
    local IFS=,
    echo "watch: squeue -j $*     output: chess_*-JOB.out in this folder"
}
chess_pipeline "$@"
