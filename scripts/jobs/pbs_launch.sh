# How a PBS job starts MPI ranks on its nodes. Sourced by pbs.sh.
# shellcheck shell=bash disable=SC2034,SC2154

# Sets mpiexec and mpiexec_version to the first one that starts ranks. PBS's own mpiexec (its profile puts it on PATH) is
# only a wrapper that looks for another one on the PATH of the submission.
find_mpiexec() {
    while read -r mpiexec; do
        mpiexec_version=$("$mpiexec" --version 2>&1 || true)
        if [[ $mpiexec_version != *pbs_version* ]]; then return; fi
    done < <(type -aP mpiexec | awk '!seen[$0]++'
        for mpiexec in "$FSDP_BIN" "$FSDP_HOME/.deps/venv/bin"; do # the one that belongs to the programs' MPI
            if [[ -x $mpiexec/mpiexec ]]; then echo "$mpiexec/mpiexec"; fi
        done)
    die "no mpiexec on PATH but PBS's own, if that, nor in $FSDP_BIN: load the site's MPI module or set LAUNCHER" 2
}

# Sets launch, the command before a program that runs as RANKS_PER_NODE ranks on each node, and once_per_node, the one
# before a program that runs once on each node (empty: not known).
choose_launcher() {
    # The node file has one line per node, or per MPI process if select asked for mpiprocs: count the distinct hosts.
    temporary=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-job.XXXXXX")
    trap 'rm -rf "$temporary"' EXIT
    hosts=$temporary/hosts
    awk '!seen[$0]++' "$PBS_NODEFILE" >"$hosts"
    num_nodes=$(wc -l <"$hosts")
    RANKS_PER_NODE=${RANKS_PER_NODE:-4}
    num_ranks=$((num_nodes * RANKS_PER_NODE))
    DEPTH=${DEPTH:-8}
    CPU_BIND=${CPU_BIND-list:24:16:8:0}
    # PBS sets OMP_NUM_THREADS to the number of cores of the node, too many for several ranks per node.
    export OMP_NUM_THREADS=$DEPTH
    if [[ -n ${LAUNCHER:-} ]]; then
        read -ra launch <<<"$LAUNCHER"
        once_per_node=()
        if ((num_nodes == 1)); then once_per_node=(env); fi
        return
    fi
    find_mpiexec
    # --cpu-bind and --depth are options of Cray's mpiexec (PALS); hydra refuses them.
    case $mpiexec_version in
        *HYDRA*)
            launch=("$mpiexec" -f "$hosts" -ppn "$RANKS_PER_NODE" -n "$num_ranks")
            once_per_node=("$mpiexec" -f "$hosts" -ppn 1 -n "$num_nodes")
            reach_hosts ;;
        *"Open MPI"* | *OpenRTE* | *PRRTE*)
            # mpirun binds ranks to cores, and kills them soon after a signal.
            launch=("$FSDP_HOME/scripts/jobs/open_mpi.sh" "$mpiexec" --hostfile "$hosts" --map-by "ppr:$RANKS_PER_NODE:node" --bind-to none -n "$num_ranks")
            once_per_node=("$mpiexec" --hostfile "$hosts" --map-by ppr:1:node -n "$num_nodes")
            pass_variables
            reach_hosts ;;
        *)
            launch=("$mpiexec" -n "$num_ranks" --ppn "$RANKS_PER_NODE" --depth="$DEPTH" ${CPU_BIND:+--cpu-bind "$CPU_BIND"})
            once_per_node=("$mpiexec" -n "$num_nodes" --ppn 1) ;;
    esac
}

# Open MPI passes only its own variables on to other hosts. These are those of the site file and of the job scripts.
pass_variables() {
    local name
    for name in $(compgen -e | grep -E '^(FSDP_|NCCL_|FI_|UCX_|OMP_|CUDA_|HF_|HDF5_|CONTAINER|HOST_MPI$)'); do
        if [[ -n ${!name} ]]; then launch+=(-x "$name"); fi
    done
}

# hydra and Open MPI start their proxies on other hosts by ssh. If ssh needs a password, use PBS's pbs_tmrsh instead. An
# Open MPI that was built with PBS's own interface (tm) needs neither and ignores the variables.
reach_hosts() {
    local other tmrsh
    if ((num_nodes == 1)) || compgen -e | grep -qE '^(HYDRA_(LAUNCHER|LAUNCHER_EXEC|BOOTSTRAP)|(OMPI|PRTE)_MCA_plm.*)$'; then return; fi
    other=$(grep -vxF -e "$(hostname)" -e "$(hostname -s)" "$hosts" | tail -n 1)
    if timeout 20 ssh -n -o BatchMode=yes -o ConnectTimeout=5 "$other" true 2>"$temporary/ssh"; then return; fi
    if ! tmrsh=$(find_pbs pbs_tmrsh); then
        say "ssh to $other fails ($(tail -n 1 "$temporary/ssh")) and there is no pbs_tmrsh: ranks there may not start"
        return
    fi
    # The command comes as several words, but pbs_tmrsh starts a program, not a shell command. The wrapper ignores a SIGTERM
    # to the job, as the ranks do.
    printf '#!/bin/bash\ntrap "" TERM USR1\nhost=$1\nshift\nexec %q "$host" /bin/sh -c "$*"\n' "$tmrsh" >"$temporary/tmrsh"
    chmod +x "$temporary/tmrsh"
    say "ssh to $other fails ($(tail -n 1 "$temporary/ssh")): pbs_tmrsh reaches the other hosts"
    # Not exported: a job that submits itself again passes its environment on.
    local by=(env HYDRA_LAUNCHER=rsh HYDRA_LAUNCHER_EXEC="$temporary/tmrsh" {OMPI_MCA_plm_rsh,PRTE_MCA_plm_ssh}_agent="$temporary/tmrsh")
    launch=("${by[@]}" "${launch[@]}")
    once_per_node=("${by[@]}" "${once_per_node[@]}")
}

# find_pbs COMMAND: prints the path of PBS's command.
find_pbs() {
    local folder
    command -v "$1" && return
    folder=${PBS_EXEC:-$(sed -n 's/^[[:space:]]*PBS_EXEC=\([^[:space:]]*\).*/\1/p' "${PBS_CONF_FILE:-/etc/pbs.conf}" 2>/dev/null | tail -n 1)}
    [[ -n $folder && -x $folder/bin/$1 ]] && echo "$folder/bin/$1"
}
