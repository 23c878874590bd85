# The jobs of a chain (chess_pipeline.sh). $run_dir/chain has a line "STAGE JOB" for each: a fine-tune that continues as
# another job records the new job there, so that --cancel finds all of them. Sourced by chess.sh.
# The scheduler's file defines this_job, job_gone JOB, cancel_jobs JOB... and, if jobs continue as other jobs,
# make_wait JOB FOR.
# shellcheck shell=bash disable=SC2034,SC2154

chain_job() { sed -n "s/^$1 //p" "$run_dir/chain" 2>/dev/null | tail -n 1; } # STAGE
chain_record() { # STAGE JOB
    mkdir -p "$run_dir"
    { grep -v "^$1 " "$run_dir/chain" 2>/dev/null || true; echo "$1 $2"; } >"$run_dir/chain.part.$$"
    mv -f "$run_dir/chain.part.$$" "$run_dir/chain"
}
chain_forget() { rm -f "$run_dir/chain" "$run_dir/chain-cancelled"; }
# Prints the chain's jobs that are still queued or running, last first: cancelling in this order starts none of them.
chain_alive() {
    local stage job
    [[ -r $run_dir/chain ]] || return 0
    while read -r stage job; do
        job_gone "$job" || echo "$stage $job"
    done < <(tac "$run_dir/chain")
}
chain_holds_this_job() { [[ -n $this_job && $(chain_job finetune) == "$this_job" ]]; }

# Called before the fine-tune continues as another job: ends the script if no job waits for the result any more.
chain_goes_on() {
    local job
    chain_holds_this_job || return 0
    if [[ -e $run_dir/chain-cancelled ]]; then
        die "stopped at step $step; the chain was cancelled, so this job does not go on" 85
    fi
    job=$(chain_job convert)
    if [[ -n $job ]] && job_gone "$job"; then
        die "stopped at step $step; $job (convert), which waits for this job, is gone, so this job does not go on: start \
chess_pipeline.sh again to go on" 85
    fi
}

# chain_goes_on_as JOB: records JOB as the fine-tune and makes the jobs that wait for this job wait for JOB, because PBS
# takes exit code 0 of this job as the end of the fine-tune.
chain_goes_on_as() {
    local waiting
    chain_record finetune "$1"
    if [[ -e $run_dir/chain-cancelled ]]; then # cancelled in the meantime
        cancel_jobs "$1" || true
        die "the chain was cancelled, so $1 does not go on" 85
    fi
    waiting=$(chain_job convert)
    if [[ -n $waiting ]]; then
        make_wait "$waiting" "$1" ||
            die "$waiting cannot be made to wait for $1 instead of this job, which fails so that $waiting does not start" 85
    fi
}

# chess_pipeline.sh --cancel: cancels until no job is left, even if the fine-tune submits itself again meanwhile.
chain_cancel() {
    local -a alive=() asked=()
    local end=$((SECONDS + ${CANCEL_SECONDS:-60})) stage job
    if [[ ! -s $run_dir/chain ]]; then
        say "$run_dir has no chain: nothing to cancel (RUN_NAME and OUT_DIR are to be those of its start)"
        return
    fi
    : >"$run_dir/chain-cancelled"
    while :; do
        mapfile -t alive < <(chain_alive)
        ((${#alive[@]})) || break
        for job in "${alive[@]}"; do
            stage=${job%% *} job=${job#* }
            if [[ " ${asked[*]} " == *" $job "* ]]; then continue; fi
            cancel_jobs "$job" || job_gone "$job" || die "$stage $job cannot be cancelled"
            line "$stage" "$job" "cancelled"
            asked+=("$job")
        done
        if ((SECONDS >= end)); then
            say "still ending: ${alive[*]}; a fine-tune saves its checkpoint first"
            return
        fi
        sleep 1
    done
    if ((${#asked[@]} == 0)); then say "no job of the chain is there any more: nothing to cancel"; fi
    chain_forget
}
