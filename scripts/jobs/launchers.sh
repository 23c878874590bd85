# scripts/site-check --launch: which launcher starts the programs' ranks here, with what, and whether signals reach them.
# shellcheck shell=bash disable=SC2154 # sourced by site-check, after site.sh

launch_limit=60 # seconds for each way

# ways_to_launch: sets ways, one command line each, and wanted, the number of ranks that each of them should start.
ways_to_launch() {
    local kind mpi
    local -A seen=()
    ways=() wanted=${RANKS:-2}
    if [[ -n ${SLURM_JOB_ID:-} ]] && has srun; then
        wanted=${RANKS:-${SLURM_NTASKS:-2}}
        while read -r kind; do
            ways+=("srun --mpi=$kind --ntasks=$wanted --wait=20")
        done < <(srun_kinds | grep -vx none | sort -u)
    fi
    for mpi in "$FSDP_BIN/mpiexec" "$(type -P mpiexec || true)" "$(type -P mpirun || true)"; do
        [[ -n $mpi && -x $mpi && -z ${seen[${mpi%/*}]:-} ]] || continue
        seen[${mpi%/*}]=1 # mpirun and mpiexec of one folder are the same
        case $("$mpi" --version 2>&1) in
            *pbs_version*) continue ;; # PBS's wrapper, which starts nothing by itself
            *"Open MPI"* | *OpenRTE* | *PRRTE*) ways+=("$mpi -n $wanted --bind-to none --oversubscribe") ;;
            *) ways+=("$mpi -n $wanted") ;;
        esac
    done
}

# try_way LINE: starts the check by this launcher. Sets verdict, and works to 1 if it starts one job of all ranks.
try_way() {
    local code=0 ranks start=$SECONDS
    works=0
    # shellcheck disable=SC2086 # words of a command line
    timeout "$launch_limit" $1 "$FSDP_BIN/fsdp-bf16check" --launch --json --run-folder "$run_folder" \
        >"$scratch/out" 2>"$scratch/err" </dev/null || code=$?
    ranks=$(grep -c '^ *"rank":' "$scratch/out")
    if ((code == 124)); then
        verdict="does not end within $launch_limit s"
    elif ((ranks == wanted && (code == 0 || code == 3))); then
        works=1 verdict="$ranks ranks of $(sed -n 's/^ *"mpi": "\(.*\)",*$/\1/p' "$scratch/out" | head -n 1), after $((SECONDS - start)) s"
    else
        verdict="no: $(grep -m 1 -iE 'error|refused|not |unable|cannot' "$scratch/err" | cut -c1-160 || true)"
        if [[ $verdict == "no: " ]]; then verdict="no: exit code $code, $ranks ranks"; fi
    fi
}

# try_signal LINE SIGNAL: sends the launcher a signal, or, as the scheduler does it, the ranks of srun. Sets verdict.
try_signal() {
    local launcher code=0 i
    rm -f "$scratch/out" "$scratch/err"
    # shellcheck disable=SC2086
    $1 "$FSDP_BIN/fsdp-bf16check" --launch --await-signal 20 --run-folder "$run_folder" >"$scratch/out" 2>"$scratch/err" </dev/null &
    launcher=$!
    for ((i = 0; i < 600; i++)); do
        if grep -qs 'ready: waiting' "$scratch/err" || ! kill -0 "$launcher" 2>/dev/null; then break; fi
        sleep 0.1
    done
    case $1 in
        srun*) scancel -s "$2" "$SLURM_JOB_ID" ;; # to steps, not to this script
        *) kill -"$2" "$launcher" 2>/dev/null ;;
    esac
    wait "$launcher" || code=$?
    verdict=$(sed -n 's/^signal  *//p' "$scratch/out")
    verdict="${verdict:-reaches no rank}, exit code $code"
    if ((code != 85)); then verdict+=" in place of 85, which the job scripts read from FSDP_EXIT_FILE"; fi
}

look_at_limits() {
    local facts
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        facts=$(ask scontrol show job "$SLURM_JOB_ID"; ask scontrol show config)
        case $facts in
            *Requeue=1*) row requeue "allowed for this job" ;;
            *) row requeue "not allowed for this job: sbatch --requeue, or the site forbids it (JobRequeue=$(sed -n 's/^JobRequeue *= *//p' <<<"$facts"))" ;;
        esac
        row "after a signal" "$(sed -n 's/^KillWait *= *//p' <<<"$facts") between SIGTERM and SIGKILL at the time limit (KillWait)"
    elif [[ -n ${PBS_JOBID:-} ]]; then
        facts=$(ask qstat -f "$PBS_JOBID")
        row requeue "$(sed -n 's/^ *Rerunable = //p' <<<"$facts") (Rerunable of this job)"
        row "after a signal" "10 s between SIGTERM and SIGKILL, unless the site changed kill_delay"
    else
        row job "none: this is the node you are on. The same in a job: sbatch -N 2 --ntasks-per-node=2 --wrap 'scripts/site-check --launch'"
    fi
}

row() { printf '%-14s %s\n' "$1" "$2"; }

# check_launch [FOLDER]: prints what works, and what to put into the site file.
check_launch() {
    local way best='' name
    local -a ways
    run_folder=${1:-${OUT_DIR:-.}}
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-launch.XXXXXX") || return
    trap 'rm -rf "$scratch"' EXIT
    # mpirun of Open MPI refuses root and more ranks than cores.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    look_at_limits
    ways_to_launch
    for way in "${ways[@]}"; do
        try_way "$way"
        row "${way%% -n *}" "$verdict"
        if ((works)) && [[ -z $best ]]; then best=$way; fi
    done
    if [[ -z $best ]]; then
        echo "no launcher starts $wanted ranks: load the MPI module that the programs were built with, or see docs/clusters.md, \"Which MPI\""
        return 1
    fi
    echo
    echo "by ${best%% --wait*}:"
    # shellcheck disable=SC2086
    timeout "$launch_limit" $best "$FSDP_BIN/fsdp-bf16check" --launch --run-folder "$run_folder" 2>/dev/null </dev/null
    for name in USR1 TERM; do
        try_signal "$best" "$name"
        row "SIG$name" "$verdict"
    done
    echo
    case $best in
        srun*) way=${best#srun --mpi=}; echo "for the site file: : \"\${SRUN_MPI:=${way%% *}}\"" ;;
        *) echo "for the site file: nothing; the job scripts find ${best%% *}, and LAUNCHER overrides it" ;;
    esac
}
