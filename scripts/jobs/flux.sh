# Shared by the job scripts for Flux: how flux run starts MPI ranks, and how a job comes back.
# shellcheck shell=bash disable=SC2034,SC2154
job_name=${job_name:-$(basename "$0")}
# shellcheck source=common.sh
source "$FSDP_HOME/scripts/jobs/common.sh"

need_flux() { [[ -n ${FLUX_JOB_ID:-} ]] || die "this is a Flux batch script: submit it with flux batch" 2; }

# Sets launch, the command before a program that is to run as RANKS_PER_NODE ranks on each node.
choose_launcher() {
    num_nodes=$(flux resource list -n -o '{nnodes}' | head -n 1)
    RANKS_PER_NODE=${RANKS_PER_NODE:-4}
    num_ranks=$((num_nodes * RANKS_PER_NODE))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${DEPTH:-8}}
    if [[ -n ${LAUNCHER:-} ]]; then
        read -ra launch <<<"$LAUNCHER"
        return
    fi
    command -v flux >/dev/null || die "there is no flux here, which starts the ranks: set LAUNCHER" 2
    launch=(flux run -N "$num_nodes" -n "$num_ranks" -c "${DEPTH:-8}" -o pmi=simple)
}

# Sets TIME_LIMIT, unless it is set, to what the job has left less $1 seconds.
set_time_limit() {
    local seconds
    if [[ -n ${TIME_LIMIT:-} ]]; then return; fi
    seconds=$(flux job timeleft 2>/dev/null) || return 0
    seconds=$((${seconds%.*} - $1))
    if ((seconds >= 60)); then
        TIME_LIMIT=$(printf '%d:%02d:%02d' $((seconds / 3600)) $((seconds / 60 % 60)) $((seconds % 60)))
    fi
}

signal_is_final() {
    forget_start
    die "stopped by a signal at step $step: submit again with RUN_NAME=$RUN_NAME to go on" 85
}

# train ARGUMENTS of fsdp-finetune, after options: from the run's newest checkpoint; submits the job again on 85.
train() {
    local code=0
    begin_run
    say "run $run_dir from step $step on $num_nodes node(s), $num_ranks ranks, start by ${launch[*]}"
    "${launch[@]}" "$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" || code=$?
    end_run "$code"
    say "stopped at step $step, submitting again"
    export RUN_NAME FSDP_HOME
    flux batch -N "$num_nodes" "$0" "$@" || die "that failed; submit again with RUN_NAME=$RUN_NAME to go on" 85
    exit 0
}

# --- for chess_chain.sh -----------------------------------------------------------------------------------------------
this_job=${FLUX_JOB_ID:-}
# True where Flux answers that the job is over.
job_gone() { [[ $(flux jobs -n -o '{state}' "$1" 2>/dev/null) == INACTIVE ]]; }
cancel_jobs() { flux cancel "$@"; }
