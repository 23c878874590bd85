# Shared by the job scripts for Slurm: how srun starts MPI ranks, and how a job is requeued.
# shellcheck shell=bash disable=SC2034,SC2154
job_name=${SLURM_JOB_NAME:-${job_name:-$(basename "$0")}}
# shellcheck source=common.sh
source "$FSDP_HOME/scripts/jobs/common.sh"
printf -v script_start '%(%s)T' -1
# The name of this job for scontrol. The number of an array's task may be that of the whole array.
slurm_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
slurm_job=${slurm_job:-${SLURM_JOB_ID:-}}
# A job that was submitted with --export=NONE gives none of its variables to srun, even those of the site file.
if [[ -n ${SLURM_JOB_ID:-} ]]; then export SLURM_EXPORT_ENV=ALL; fi

need_slurm() { [[ -n ${SLURM_JOB_ID:-} ]] || die "this is a Slurm batch script: submit it with sbatch" 2; }

# A wrong --mpi starts N jobs of one rank each; fsdp-finetune detects this and ends. Of the kinds this Slurm offers, take
# the first that fits the programs' MPI library and really starts a task (pmix may be listed without its library).
# Seen with Slurm 22.05: MPICH (Debian's 4.0.2 and the 5.0.2 wheel) works with pmi2 without further settings, and
# starts ranks of size 1 with none, openmpi and cray_shasta.
choose_srun_mpi() {
    local offered libraries name
    local -a fitting
    offered=" $(srun --mpi=list 2>&1 | tr -s ' \n\t,:' ' ') "
    libraries=$({ ls "${HOST_MPI:-/nowhere}"; ldd "$FSDP_BIN"/../lib/{fsdp/,}libfsdp_mpi.so; } 2>/dev/null | grep -o 'libmpi[^ ]*' || true)
    case $libraries in
        *libmpi_cray* | *libmpi_gnu* | *libmpi_intel* | *libmpi_nvidia* | *libmpi_amd*) fitting=(cray_shasta pmi2) ;;
        *libmpi.so.40* | *libmpi_cxx*) fitting=(pmix pmix_v5 pmix_v4 pmix_v3) ;;
        *) fitting=(pmi2 pmix cray_shasta) ;;
    esac
    for name in "${fitting[@]}"; do
        if [[ $offered == *" $name "* ]] && srun --mpi="$name" --nodes=1 --ntasks=1 true >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    return 1
}

# Sets launch, the command before a program that runs as one rank per task, and once_per_node, the one before a program
# that runs once on each node (empty: not known).
choose_launcher() {
    ((${SLURM_HET_SIZE:-1} == 1)) || die "this is a heterogeneous job of $SLURM_HET_SIZE components, and srun starts ranks in the first \
one only: submit it without ':', with one kind of nodes" 2
    once_per_node=(srun --mpi=none --nodes="${SLURM_JOB_NUM_NODES:-1}" --ntasks="${SLURM_JOB_NUM_NODES:-1}" --ntasks-per-node=1)
    if [[ -n ${LAUNCHER:-} ]]; then
        read -ra launch <<<"$LAUNCHER"
        once_per_node=()
        if ((${SLURM_JOB_NUM_NODES:-1} == 1)); then once_per_node=(env); fi
    else
        local without="on one node LAUNCHER=\"$FSDP_BIN/mpiexec -n ${SLURM_NTASKS:-N}\" does without it" lacks
        command -v srun >/dev/null || die "there is no srun here, which starts the ranks: $without" 2
        if [[ -z ${SRUN_MPI:-} ]]; then
            lacks=$(srun --mpi=list 2>&1 >/dev/null) || die "srun starts nothing here (${lacks##*$'\n'}): $without" 2
            SRUN_MPI=$(choose_srun_mpi) ||
                die "none of the types of srun --mpi=list fits the MPI of $FSDP_BIN/fsdp-finetune: set SRUN_MPI or LAUNCHER" 2
        fi
        # --wait: when a rank has ended, the others get one minute. --kill-on-bad-exit would turn exit code 85 into 143.
        launch=(srun --mpi="$SRUN_MPI" --wait=60 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"})
    fi
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}; fi
}

# site_words: prints the options of sbatch by the variables that the site file and the user set, a word per line.
site_words() {
    local name
    for name in ACCOUNT:account PARTITION:partition QOS:qos CONSTRAINT:constraint NODES:nodes WALLTIME:time MAIL:mail-user; do
        local value=${name%:*}
        if [[ -n ${!value:-} ]]; then echo "--${name#*:}=${!value}"; fi
    done
    if [[ -n ${MAIL:-} ]]; then echo --mail-type=END,FAIL; fi
    if ((${GPUS:-0} > 0)); then printf '%s\n' "--gpus-per-node=$GPUS" "--ntasks-per-node=$GPUS"; fi
}
# Prints how many seconds before its end the job is signalled: by --signal=NAME@SECONDS in SUBMIT, else in this script. Slurm
# sends it up to 20 s earlier.
seconds_to_save() {
    sed -nE 's/^(#SBATCH )?--signal=.*@([0-9]+)$/\2/p' "$0" <(printf '%s\n' "${words_of[@]}") | tail -n 1
}
# submission ARGUMENTS: sets words to the command that submits this script with these arguments, and submit_with to its
# program. The environment goes along.
submission() {
    submit_with='sbatch'
    mapfile -t words < <(site_words)
    words=(sbatch --export=ALL "${words[@]}") # whatever SBATCH_EXPORT says
    if ((sweep_size > 1)); then words+=("--array=0-$((sweep_size - 1))"); fi
    split_words "${SUBMIT:-}"
    tell_of_walltime "$(seconds_to_save)"
    words+=("${words_of[@]}" "$FSDP_HOME/slurm/$(basename "$0")" "$@")
}

# called_off: true if this job was cancelled, preempted or requeued, so that it must not be requeued (once more) by this
# script. Only Slurm knows, so it is asked each time, whether a signal was seen or not: a job that is over has another state
# than RUNNING, and TimeLimit as the reason if that ended it. SIGTERM to a running job is preemption, or somebody's wish that
# it ends; SIGUSR1 is the script's own --signal, or the user's, and asks for a requeue. Sets when, for messages.
called_off() {
    local now facts left seconds
    when=''
    facts=$(scontrol show job "$slurm_job" 2>/dev/null || true)
    if [[ $facts =~ Reason=TimeLimit|JobState=TIMEOUT ]]; then return 1; fi
    if [[ $signalled != SIGTERM && ! $facts =~ JobState=(COMPLETING|CANCELLED|PREEMPTED) ]]; then return 1; fi
    printf -v now '%(%s)T' -1
    # [D-]H:M:S; read now, because it may be changed while the job runs
    if [[ $facts =~ TimeLimit=([0-9:-]+) ]] && read_seconds "${BASH_REMATCH[1]}"; then
        time_left $((seconds + script_start - now))
        when=" $left before the time limit"
    fi
}
ends_if_called_off() {
    local when
    called_off || return 0
    forget_start
    die "cancelled, preempted or requeued$when, at step $step: not requeued; submit again with RUN_NAME=$RUN_NAME to go on, unless \
Slurm requeues this job by itself (preemption, scontrol requeue)" 85
}

# train ARGUMENTS of fsdp-finetune, after options: trains from the run's newest checkpoint; requeues the job on 85.
train() {
    local code=0 nodes
    begin_run "$@"
    say "run $run_dir from step $step on ${SLURM_JOB_NUM_NODES:-1} node(s), ${SLURM_NTASKS:-?} ranks, start by ${launch[*]}"
    run_ranks "${launch[@]}" "$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" "${final[@]}"
    end_run "$code"
    say "stopped at step $step, requeueing"
    nodes=$(nodes_to_leave_out "$@") || nodes=''
    scontrol requeue "$slurm_job" || die "this Slurm did not requeue; submit again with RUN_NAME=$RUN_NAME to go on" 85
    if [[ -n $nodes ]]; then leave_out "$nodes"; fi
}

# nodes_to_leave_out ARGUMENTS of fsdp-finetune: prints the nodes in the file of --exclude-file after those that the job was
# submitted without, which Slurm would forget; nothing if the file has none.
nodes_to_leave_out() {
    local job_config='' file nodes facts
    read_config "$@" 2>/dev/null || return 0
    file=$(configured exclude-file)
    [[ -f $file && -r $file ]] || return 0
    nodes=$(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$file" | paste -sd,)
    [[ -n $nodes ]] || return 0
    facts=$(scontrol show job "$slurm_job" 2>/dev/null || true)
    if [[ $facts =~ ExcNodeList=([^[:space:]]+) && ${BASH_REMATCH[1]} != "(null)" ]]; then nodes=${BASH_REMATCH[1]},$nodes; fi
    echo "$nodes"
}

# leave_out NODES: the next start of this job gets none of them. Slurm takes them of a job that waits only, as this one does
# from its requeue on, which comes to all of its processes as SIGTERM.
leave_out() {
    if (
        trap '' TERM
        # A controller that is busy still counts the job as one that ends.
        for _ in 1 2 3 4 5; do
            scontrol update JobId="$slurm_job" ExcNodeList="$1" && exit 0
            sleep 1
        done
        exit 1
    ); then
        say "the next start leaves out $1 (--exclude-file)"
    else
        say "Slurm does not leave out $1 (--exclude-file)"
    fi
}

# --- for chess_chain.sh -----------------------------------------------------------------------------------------------
this_job=${SLURM_JOB_ID:-}
# True if Slurm answers that the job does not exist or is over.
job_gone() {
    local found
    if found=$(squeue -h -o %i -j "$1" 2>&1); then [[ -z $found ]]; else [[ $found == *"Invalid job id"* ]]; fi
}
cancel_jobs() { scancel "$@"; }
