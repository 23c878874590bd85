# Shared by the job scripts for Slurm: how srun starts MPI ranks, and how a job comes back.
# shellcheck shell=bash
job_name=${SLURM_JOB_NAME:-${job_name:-$(basename "$0")}}
# shellcheck source=common.sh
source "$FSDP_HOME/scripts/jobs/common.sh"

need_slurm() { [[ -n ${SLURM_JOB_ID:-} ]] || die "this is a Slurm batch script: submit it with sbatch" 2; }

# A wrong choice starts N jobs of one rank each; fsdp-finetune notices that and ends. Of what this Slurm offers, take the
# first that fits the MPI library of the programs and really starts a task (pmix may be listed without its library).
# Seen with Slurm 22.05: MPICH (Debian's 4.0.2 and the 5.0.2 wheel) works with pmi2, needs no further setting, and
# ends up as ranks of size 1 with none, openmpi and cray_shasta.
choose_srun_mpi() {
    local offered libraries name
    local -a fitting
    offered=" $(srun --mpi=list 2>&1 | tr -s ' \n\t,:' ' ') "
    libraries=$(ldd "$FSDP_BIN/fsdp-finetune" | grep -o 'libmpi[^ ]*' || true)
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

# Sets launch, the command before a program that is to run as one rank per task, and ranks for messages.
choose_launcher() {
    if [[ -n ${LAUNCHER:-} ]]; then
        read -ra launch <<<"$LAUNCHER"
    else
        if [[ -z ${SRUN_MPI:-} ]]; then
            SRUN_MPI=$(choose_srun_mpi) ||
                die "none of the types of srun --mpi=list fits the MPI of $FSDP_BIN/fsdp-finetune: set SRUN_MPI or LAUNCHER" 2
        fi
        # --wait: when a rank has ended, the others have a minute to follow. --kill-on-bad-exit would turn 85 into 143.
        launch=(srun --mpi="$SRUN_MPI" --wait=60 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"})
    fi
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}; fi
}

# train ARGUMENTS of fsdp-finetune, after options: from the run's newest checkpoint; requeues the job on 85.
train() {
    local code=0
    begin_run
    trap : TERM USR1 # this shell outlives a signal to the whole job, to requeue it
    say "run $run_dir from step $step on ${SLURM_JOB_NUM_NODES:-1} node(s), ${SLURM_NTASKS:-?} ranks, start by ${launch[*]}"
    "${launch[@]}" "$FSDP_BIN/fsdp-finetune" "${options[@]}" "$@" || code=$?
    end_run "$code"
    say "stopped at step $step, requeueing"
    scontrol requeue "$SLURM_JOB_ID" || die "this Slurm did not requeue; submit again with RUN_NAME=$RUN_NAME to go on" 85
}
