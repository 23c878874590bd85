# Shared by the job scripts for PBS; made for Polaris (4 GPUs per node), fit for other sites by its variables.
# shellcheck shell=bash disable=SC2034,SC2154
job_name=${PBS_JOBNAME:-${job_name:-$(basename "$0")}}
# shellcheck source=common.sh
source "$FSDP_HOME/scripts/jobs/common.sh"
# shellcheck source=pbs_launch.sh
source "$FSDP_HOME/scripts/jobs/pbs_launch.sh"
# shellcheck source=pbs_again.sh
source "$FSDP_HOME/scripts/jobs/pbs_again.sh"
printf -v script_start '%(%s)T' -1
job_script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0") # PBS's copy of what was submitted

# Changes to the folder of submission (jobs start in the home folder) and reads the facts that PBS has of this job.
enter_pbs_job() {
    [[ -n ${PBS_JOBID:-} && -n ${PBS_NODEFILE:-} ]] || die "this is a PBS batch script: submit it with qsub" 2
    [[ -r $PBS_NODEFILE ]] || die "PBS_NODEFILE=$PBS_NODEFILE cannot be read" 2
    cd "$PBS_O_WORKDIR" || exit
    job_facts=''
    read_job_facts || true
}

# site_words: prints the options of qsub by the variables that the site file and the user set, a word per line. The number
# of nodes and their kind are one option, and so is everything in it.
site_words() {
    local select="${NODES:-1}${CPUS:+:ncpus=$CPUS}${CONSTRAINT:+:$CONSTRAINT}"
    if ((${GPUS:-0} > 0)); then select+=:ngpus=$GPUS; fi
    if [[ -n ${ACCOUNT:-} ]]; then printf '%s\n' -A "$ACCOUNT"; fi
    if [[ -n ${PARTITION:-} ]]; then printf '%s\n' -q "$PARTITION"; fi
    if [[ $select != 1 ]]; then printf '%s\n' -l "select=$select" -l place=scatter; fi
    if [[ -n ${WALLTIME:-} ]]; then printf '%s\n' -l "walltime=$WALLTIME"; fi
    if [[ -n ${MAIL:-} ]]; then printf '%s\n' -m ae -M "$MAIL"; fi
}
# submission ARGUMENTS: sets words to the command that submits this script, after `env`, and submit_with to its program. The
# environment takes the arguments along (-V): qsub has none for a script, and its -v cannot pass values with commas.
submission() {
    submit_with='qsub'
    ARGS=$(join_words "$@")
    mapfile -t words < <(site_words)
    words=("ARGS=$ARGS" qsub -V "${words[@]}")
    if ((sweep_size > 1)); then words+=(-J "0-$((sweep_size - 1))"); fi
    split_words "${SUBMIT:-}"
    tell_of_walltime 180
    words+=("${words_of[@]}" "$FSDP_HOME/pbs/$(basename "$0")")
}

# Reads job_facts again; the earlier ones stay if qstat fails.
read_job_facts() {
    local facts
    facts=$(qstat -f "$PBS_JOBID" 2>/dev/null) && [[ -n $facts ]] || return 1
    job_facts=$(sed -e ':a' -e 'N' -e '$!ba' -e 's/\n\t//g' <<<"$facts") # join continuation lines
}
# job_fact NAME: takes the first such line, which is PBS's own; a job variable may contain a line of the same form.
job_fact() { awk -v "name=    $1 = " 'index($0, name) == 1 { print substr($0, length(name) + 1); exit }' <<<"$job_facts"; }

# Sets walltime, in seconds; fails if PBS does not report it.
read_walltime() {
    local text
    text=$(job_fact Resource_List.walltime)
    [[ $text =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]] || return 1
    walltime=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]}))
}

# Sets TIME_LIMIT, unless it is set, to the job's walltime less $1 seconds, if qstat reports it.
set_time_limit() {
    local seconds walltime warning="PBS gives 10 s between SIGTERM and SIGKILL, in which little can be saved; TIME_LIMIT sets one"
    if [[ -n ${TIME_LIMIT:-} ]]; then return; fi
    if ! read_walltime; then
        say "no time limit is set for fsdp-finetune, since qstat tells no walltime of this job. $warning"
        return
    fi
    seconds=$((walltime - $1))
    if ((seconds < 60)); then
        say "no time limit is set for fsdp-finetune, since a walltime of $walltime s leaves no minute before the last $1 s. $warning"
        return
    fi
    TIME_LIMIT=$(printf '%d:%02d:%02d' $((seconds / 3600)) $((seconds / 60 % 60)) $((seconds % 60)))
}

# NCCL over Slingshot, if the site's plugin is installed. With NCCL_NET set and no plugin NCCL stops instead of using TCP.
# Our MPI transfers host memory only, so MPICH_GPU_SUPPORT_ENABLED stays off.
set_up_nccl() {
    local libraries
    NCCL_PLUGIN_DIR=${NCCL_PLUGIN_DIR-/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib}
    if [[ -n $NCCL_PLUGIN_DIR && -d $NCCL_PLUGIN_DIR ]]; then
        export NCCL_NET=${NCCL_NET-AWS Libfabric}
        export NCCL_NET_GDR_LEVEL=${NCCL_NET_GDR_LEVEL-PHB}
        export NCCL_CROSS_NIC=${NCCL_CROSS_NIC-1}
        export NCCL_COLLNET_ENABLE=${NCCL_COLLNET_ENABLE-1}
        export FI_CXI_DISABLE_HOST_REGISTER=${FI_CXI_DISABLE_HOST_REGISTER-1}
        export FI_MR_CACHE_MONITOR=${FI_MR_CACHE_MONITOR-userfaultfd}
        export FI_CXI_DEFAULT_CQ_SIZE=${FI_CXI_DEFAULT_CQ_SIZE-131072}
        libraries=$NCCL_PLUGIN_DIR${HWLOC_LIB_DIR:+:$HWLOC_LIB_DIR}
        # Do this only once: a job that submits itself again passes the variable on.
        if [[ ${LD_LIBRARY_PATH:-} != "$libraries"* ]]; then
            export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        fi
    fi
    export MPICH_GPU_SUPPORT_ENABLED=${MPICH_GPU_SUPPORT_ENABLED:-0}
}

# train ARGUMENTS of fsdp-finetune, after options: trains from the run's newest checkpoint; submits the job again on 85.
train() {
    local code=0
    begin_run "$@"
    say "run $run_dir from step $step on $num_nodes node(s), $num_ranks ranks, start by ${launch[*]}"
    run_ranks "${launch[@]}" "$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" "${final[@]}"
    end_run "$code"
    submit_again
    exit 0
}
