# Decides whether a PBS job that stopped early reached the end of its time, and how it is submitted once more.
# Sourced by pbs.sh.
# shellcheck shell=bash disable=SC2034,SC2154

# called_off: true if a signal came from qdel, qrerun or preemption instead of the end of the walltime, at which PBS sends the
# same one. Sets when, for messages.
# - At the end of the walltime PBS writes so into the job's output, before its signal.
# - qdel and qrerun leave their mark in the job's facts.
# - Where the output is no file, the clock decides: kills at the end of the walltime come late, never early; one minute allows
#   for clocks that differ.
called_off() {
    local now start left walltime file marked=0 readable=0
    when=' (PBS tells no walltime that could be over)'
    read_job_facts || true # the walltime of a running job may be changed
    if [[ $(job_fact comment) == *" and terminated"* || $(job_fact substate) == 6[0-3] ]]; then marked=1; fi
    if [[ -z $signalled ]] && ((!marked)); then return 1; fi
    for file in /proc/$$/fd/{1,2}; do
        if [[ ! -f $file || ! -r $file ]]; then continue; fi
        readable=1
        if ((!marked)) && [[ $(tail -c 65536 "$file" | tr -d "\0") == *"=>> PBS: job killed: walltime"* ]]; then return 1; fi
    done
    if ! read_walltime; then return 0; fi
    printf -v now '%(%s)T' -1
    start=$(job_fact stime)
    start=$(date -d "${start:-none}" +%s 2>/dev/null) || start=$script_start
    if ((start > script_start || start < script_start - 3600)); then start=$script_start; fi # the two clocks differ
    left=$((start + walltime - now))
    if ((!marked && !readable && left <= 60)); then return 1; fi
    time_left "$left"
    when=" $left before the walltime's end"
}
ends_if_called_off() {
    local when
    called_off || return 0
    forget_start
    die "stopped by a signal$when, at step $step: not submitted again; submit again with RUN_NAME=$RUN_NAME to go on, unless PBS \
runs this job again by itself (qrerun, preemption)" 85
}

# Fills words with the qsub call that submits this job once more; fails if there is none. Every option comes from PBS's
# facts of the job, and every value from this environment (-V), which holds it exactly: Submit_arguments has no quotes.
# Dependencies are left out: those jobs have ended, and PBS may have forgotten them.
find_resubmission() {
    local qsub line name value select vnodes
    qsub=$(find_pbs qsub) || return 1
    read_job_facts || true
    select=$(job_fact Resource_List.select)
    [[ -n $select ]] || return 1
    vnodes=$(job_fact exec_vnode)
    # -C '' ignores the directives in the file: they are among these options, or the first submission ignored them as well.
    words=("$qsub" -V -C '' -N "$PBS_JOBNAME" -q "${PBS_O_QUEUE:-$(job_fact queue)}")
    add_fact -A Account_Name ''
    add_fact -P project _pbs_project_default
    add_fact -j Join_Path n
    add_fact -k Keep_Files n
    add_fact -m Mail_Points a
    add_fact -M Mail_Users ''
    add_fact -p Priority 0
    add_fact -S Shell_Path_List ''
    add_fact -u User_List ''
    add_fact -W group_list '' group_list=
    add_fact -W umask '' umask=
    if [[ $(job_fact Rerunable) == False ]]; then words+=(-r n); else words+=(-r y); fi
    add_output -o Output_Path o
    add_output -e Error_Path e
    while IFS= read -r line; do
        name=${line%% = *} value=${line#* = }
        case $name in
            # PBS derives these from select and refuses both together.
            nodect | nodes | ncpus | mem | vmem | mpiprocs | ompthreads | ngpus | naccelerators) continue ;;
        esac
        if [[ $name != select && ":$select:$vnodes" == *":$name="* ]]; then continue; fi
        if [[ $value == *[[:space:],\'\"]* && $name != select && $name != place ]]; then
            if [[ $value == *\"* ]]; then value="'$value'"; else value="\"$value\""; fi
        fi
        words+=(-l "$name=$value")
    done < <(sed -n '/^    Variable_List/q; s/^    Resource_List\.//p' <<<"$job_facts") # stop there: a variable's value may look like a resource
    words+=("$job_script")
}
# add_fact OPTION NAME DEFAULT [PREFIX]: adds the option with PBS's value of NAME, unless it is the default.
add_fact() {
    local value
    value=$(job_fact "$2")
    if [[ -n $value && $value != "$3" ]]; then words+=("$1" "${4:-}$value"); fi
}
# add_output OPTION NAME LETTER: adds the path of the output, unless it is PBS's default path.
add_output() {
    local value
    value=$(job_fact "$2")
    if [[ -n $value && ! ${value#*:} =~ ^"$PBS_O_WORKDIR/$PBS_JOBNAME.$3"[0-9^] ]]; then words+=("$1" "$value"); fi
}

# Submits this job once more, by RESUBMIT if that is set; ends the script if this is not wanted or not possible.
submit_again() {
    local new again="submit again with RUN_NAME=$RUN_NAME to go on" shown words=()
    if [[ -z ${RESUBMIT:-} && ${PBS_ENVIRONMENT:-} == PBS_INTERACTIVE ]]; then
        die "stopped at step $step; an interactive job is not submitted by itself: $again" 85
    fi
    if [[ ${RESUBMIT:-} == no ]] || ! { [[ -n ${RESUBMIT:-} ]] || find_resubmission; }; then
        die "stopped at step $step; $again" 85
    fi
    printf -v shown ' %q' "${words[@]}"
    say "stopped at step $step, submitting again: ${RESUBMIT:-${shown# }}"
    export RUN_NAME FSDP_HOME
    if [[ -n ${RESUBMIT:-} ]]; then words=(eval "$RESUBMIT"); fi
    if declare -F chain_goes_on_as >/dev/null && chain_holds_this_job; then
        new=$("${words[@]}") || die "that failed; $again" 85
        echo "$new"
        chain_goes_on_as "$(tail -n 1 <<<"$new")"
    else
        "${words[@]}" || die "that failed; $again" 85
    fi
}

# --- for chess_chain.sh -----------------------------------------------------------------------------------------------
this_job=${PBS_JOBID:-}
# True if PBS answers that the job does not exist or is over.
job_gone() {
    local facts code=0
    facts=$(qstat -f "$1" 2>/dev/null) || code=$?
    case $code in
        0) [[ $facts =~ job_state\ =\ [FX] ]] ;;
        35 | 153) ;;
        *) return 1 ;;
    esac
}
cancel_jobs() { qdel "$@" 2>/dev/null; }
make_wait() { qalter -W "depend=afterok:$2" "$1"; } # JOB FOR
