#!/bin/bash
# The whole chess fine-tune under PBS, to be started on a login node:
#   download -> bf16check -> memprobe -> finetune -> convert -> eval
# The download runs here, the others are submitted, each after the one before it ended well (afterok; when the fine-tune
# submits itself again, the job that waits for it is made to wait for the new one). Stages whose results hold are left
# out, so starting it again is safe.
#
#   SUBMIT="-A PROJECT" bash pbs/chess_pipeline.sh [OPTIONS of fsdp-finetune, such as --gradient_checkpointing]
#   bash pbs/chess_pipeline.sh --dry-run      # says what would be done
#   bash pbs/chess_pipeline.sh --cancel       # all its jobs, also a fine-tune that has submitted itself again
#
# Variables: those of chess_finetune.pbs and chess_download.pbs (RUN_NAME is chess), and
#   DOWNLOAD   here, qsub (as a job: where compute nodes have internet) or no     here
#   ACCOUNT, PARTITION (the queue)   the site file's
#   SUBMIT, SUBMIT_DOWNLOAD, SUBMIT_FINETUNE, SUBMIT_GPU, SUBMIT_CPU    further options for qsub: for all jobs, for one,
#              for the other jobs with GPUs (bf16check, memprobe, eval), for those without (convert). Quotes hold: elsewhere
#              than on Polaris SUBMIT='-C "" -l select=1:ncpus=32:ngpus=4 -l walltime=1:00:00' leaves the directives out
#   HF_DTYPE   of the weights in OUT_DIR/RUN_NAME/hf     bf16
#   MEMPROBE_ARGS  further options for fsdp-memprobe, such as --calibration runs
#   EVAL_ARGS  further options for fsdp-eval
#
#PBS -l select=1:system=polaris
#PBS -l place=scatter
#PBS -l walltime=00:30:00
#PBS -l filesystems=home:eagle
#PBS -q debug
#PBS -r y
#PBS -k doe
#PBS -j oe
set -euo pipefail
unset CDPATH && unset -f cd # with these cd prints, and may go elsewhere
case ${1:-} in -h | --help) sed -n '2,/^[^#]/{/^#\(SBATCH\|PBS\)/!s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac

# PBS runs a copy of this file; the shared scripts lie below the folder of submission.
for FSDP_HOME in "${FSDP_HOME:-}" "$(dirname "$0")/.." "${PBS_O_WORKDIR:-.}"{,/..}; do
    if [[ -n $FSDP_HOME && -r $FSDP_HOME/scripts/jobs/pbs.sh ]]; then break; fi
done
FSDP_HOME=$(cd "$FSDP_HOME" && pwd)
# shellcheck source=../scripts/jobs/pbs.sh
source "$FSDP_HOME/scripts/jobs/pbs.sh" || { echo "submit from the project's folder, or set FSDP_HOME to it" && exit 2; }
# shellcheck source=../scripts/jobs/chess.sh
source "$FSDP_HOME/scripts/jobs/chess.sh"
# shellcheck source=../scripts/jobs/chess_stages.sh
source "$FSDP_HOME/scripts/jobs/chess_stages.sh"
if [[ -n ${PBS_JOBID:-} ]]; then # a job of the chain
    [[ -n ${CHESS_STAGE:-} ]] || die "start this on a login node, it submits the jobs itself" 2
    enter_pbs_job
    find_programs fsdp-finetune
    split_words "${ARGS:-}"
    chess_arguments=("${words_of[@]}")
    chess_settings chess
    set_up_nccl
    export HF_HUB_OFFLINE=1
    "stage_$CHESS_STAGE" "${chess_arguments[@]}"
    exit
fi
scheduler=pbs dry_run=0
if [[ ${1:-} == --dry-run ]]; then dry_run=1 && shift; fi
((dry_run)) || command -v qsub >/dev/null || die "no qsub here" 2
if [[ ${1:-} == --cancel ]]; then
    chess_settings chess
    chain_cancel
    exit
fi
find_programs fsdp-finetune
chess_settings chess

# submit STAGE AFTER ARGUMENTS: submits a stage and sets job. -V passes the environment, because -v cannot pass values
# that hold commas.
submit() {
    local words=(-V -N "chess_$1") script="$FSDP_HOME/pbs/chess_pipeline.sh" more
    words+=(${ACCOUNT:+-A "$ACCOUNT"} ${PARTITION:+-q "$PARTITION"})
    if [[ -n $2 ]]; then words+=(-W "depend=afterok:$2"); fi
    case $1 in
        download) script=$FSDP_HOME/pbs/chess_download.pbs more=${SUBMIT_DOWNLOAD:-} ;;
        finetune) script=$FSDP_HOME/pbs/chess_finetune.pbs more=${SUBMIT_FINETUNE:-} ;;
        convert) more=${SUBMIT_CPU:-} ;;
        *) more=${SUBMIT_GPU:-} ;;
    esac
    split_words "${SUBMIT:-} $more"
    words+=("${words_of[@]}" "$script")
    if ((dry_run)); then
        echo "$(join_words "CHESS_STAGE=$1" "ARGS=$(join_words "${@:3}")") qsub $(join_words "${words[@]}")"
        job="(${1^^})"
        return
    fi
    job=$(CHESS_STAGE=$1 ARGS=$(join_words "${@:3}") qsub "${words[@]}")
}
watch() { echo "watch: qstat $*"; }
split_words "${ARGS:-}"
chess_arguments=("${words_of[@]}")
chess_pipeline "${chess_arguments[@]}" "$@"
