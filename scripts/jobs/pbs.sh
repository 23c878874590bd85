# Shared by the job scripts for PBS; made for Polaris (4 GPUs per node), fit for other sites by its variables.
# shellcheck shell=bash
job_name=${PBS_JOBNAME:-${job_name:-$(basename "$0")}}
# shellcheck source=common.sh
source "$FSDP_HOME/scripts/jobs/common.sh"

# Goes to the folder of submission (jobs start in the home folder) and reads what PBS knows of this job.
enter_pbs_job() {
    [[ -n ${PBS_JOBID:-} && -n ${PBS_NODEFILE:-} ]] || die "this is a PBS batch script: submit it with qsub" 2
    [[ -r $PBS_NODEFILE ]] || die "PBS_NODEFILE=$PBS_NODEFILE cannot be read" 2
    cd "$PBS_O_WORKDIR" || exit
    job_facts=$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -e ':a' -e 'N' -e '$!ba' -e 's/\n\t//g' || true) # unfolded
}
job_fact() { sed -n "s/^ *$1 = //p" <<<"$job_facts"; }

# Sets TIME_LIMIT, unless it is set, to the job's walltime less $1 seconds, where qstat tells it.
set_time_limit() {
    local walltime seconds
    walltime=$(job_fact Resource_List.walltime)
    if [[ -z ${TIME_LIMIT:-} && $walltime =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]]; then
        seconds=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]} - $1))
        ((seconds >= 60)) || return 0
        TIME_LIMIT=$(printf '%d:%02d:%02d' $((seconds / 3600)) $((seconds / 60 % 60)) $((seconds % 60)))
    fi
}

# Sets launch, the command before a program that is to run as RANKS_PER_NODE ranks on each node.
choose_launcher() {
    # The node file has one line per node, or per MPI process where select asked for mpiprocs: count the hosts.
    hosts=$(mktemp "${TMPDIR:-/tmp}/hosts.XXXXXX")
    trap 'rm -f "$hosts"' EXIT
    awk '!seen[$0]++' "$PBS_NODEFILE" >"$hosts"
    num_nodes=$(wc -l <"$hosts")
    RANKS_PER_NODE=${RANKS_PER_NODE:-4}
    num_ranks=$((num_nodes * RANKS_PER_NODE))
    DEPTH=${DEPTH:-8}
    CPU_BIND=${CPU_BIND-list:24:16:8:0}
    # PBS sets OMP_NUM_THREADS to the cores of the node, which is too many for several ranks on it.
    export OMP_NUM_THREADS=$DEPTH
    if [[ -n ${LAUNCHER:-} ]]; then
        read -ra launch <<<"$LAUNCHER"
        return
    fi
    command -v mpiexec >/dev/null || PATH=$FSDP_BIN:$PATH # the one that was built with the programs
    command -v mpiexec >/dev/null || die "no mpiexec on PATH or in $FSDP_BIN: load the site's MPI module or set LAUNCHER" 2
    # --cpu-bind and --depth are options of Cray's mpiexec (PALS); hydra refuses them.
    case $(mpiexec --version 2>&1 || true) in
        *HYDRA*) launch=(mpiexec -f "$hosts" -ppn "$RANKS_PER_NODE" -n "$num_ranks") ;;
        *"Open MPI"* | *OpenRTE* | *PRRTE*)
            launch=(mpiexec --hostfile "$hosts" --map-by "ppr:$RANKS_PER_NODE:node" -n "$num_ranks") ;;
        *) launch=(mpiexec -n "$num_ranks" --ppn "$RANKS_PER_NODE" --depth="$DEPTH" ${CPU_BIND:+--cpu-bind "$CPU_BIND"}) ;;
    esac
}

# NCCL over Slingshot, where the site's plugin is. With NCCL_NET set and the plugin missing NCCL stops instead of using
# TCP. Our MPI moves host memory only, so MPICH_GPU_SUPPORT_ENABLED stays off.
set_up_nccl() {
    NCCL_PLUGIN_DIR=${NCCL_PLUGIN_DIR-/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib}
    if [[ -n $NCCL_PLUGIN_DIR && -d $NCCL_PLUGIN_DIR ]]; then
        export NCCL_NET=${NCCL_NET-AWS Libfabric}
        export NCCL_NET_GDR_LEVEL=${NCCL_NET_GDR_LEVEL-PHB}
        export NCCL_CROSS_NIC=${NCCL_CROSS_NIC-1}
        export NCCL_COLLNET_ENABLE=${NCCL_COLLNET_ENABLE-1}
        export FI_CXI_DISABLE_HOST_REGISTER=${FI_CXI_DISABLE_HOST_REGISTER-1}
        export FI_MR_CACHE_MONITOR=${FI_MR_CACHE_MONITOR-userfaultfd}
        export FI_CXI_DEFAULT_CQ_SIZE=${FI_CXI_DEFAULT_CQ_SIZE-131072}
        export LD_LIBRARY_PATH=$NCCL_PLUGIN_DIR${HWLOC_LIB_DIR:+:$HWLOC_LIB_DIR}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    fi
    export MPICH_GPU_SUPPORT_ENABLED=${MPICH_GPU_SUPPORT_ENABLED:-0}
}

# Sets RESUBMIT, unless it is set, to the command that submits this job once more; ends the script where there is none.
prepare_resubmission() {
    local submitted
    if [[ -z ${RESUBMIT:-} ]]; then
        RESUBMIT=no
        # What this job waited for is over, and PBS may have forgotten it.
        submitted=$(job_fact Submit_arguments | sed -E 's/ *-W *depend=[^ ]+//; s/(^| )-V( |$)/\1/')
        # RUN_NAME makes the new job continue this run; by -V, for a second -v would replace the one in the arguments.
        if [[ -n $submitted ]] && command -v qsub >/dev/null; then RESUBMIT="qsub -V $submitted"; fi
    fi
    if [[ $RESUBMIT == no ]]; then die "stopped at step $step; submit again with RUN_NAME=$RUN_NAME to go on" 85; fi
    say "stopped at step $step, submitting again: $RESUBMIT"
    export RUN_NAME
}

# train ARGUMENTS of fsdp-finetune, after options: from the run's newest checkpoint; submits the job again on 85.
train() {
    local code=0
    begin_run
    trap : TERM USR1 # this shell outlives a signal to the whole job, to submit it again
    say "run $run_dir from step $step on $num_nodes node(s), $num_ranks ranks, start by ${launch[*]}"
    "${launch[@]}" "$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" || code=$?
    end_run "$code"
    prepare_resubmission
    if [[ -s $run_dir/pbs-next ]]; then
        hand_over
    else
        eval "$RESUBMIT" || die "that failed; submit again with RUN_NAME=$RUN_NAME to go on" 85
    fi
    exit 0
}

# Jobs that wait for this one ($run_dir/pbs-next) are to wait for the new one: PBS counts this job's 0 as the end of it.
hand_over() {
    local new waiting
    new=$(eval "$RESUBMIT") || die "that failed; submit again with RUN_NAME=$RUN_NAME to go on" 85
    echo "$new"
    while read -r waiting; do
        qalter -W "depend=afterok:$new" "$waiting" ||
            die "$waiting cannot be made to wait for $new instead of this job, which fails so that $waiting does not start" 85
    done <"$run_dir/pbs-next"
}
