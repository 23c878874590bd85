# Shared by the tests in this folder; source it.  CMake gives FSDP_BIN (folder of the programs), FSDP_SOURCE (the project),
# FSDP_MPIEXEC (launcher of the programs' MPI) and FSDP_PYTHON.
# shellcheck shell=bash
: "${FSDP_BIN:?}" "${FSDP_SOURCE:?}" "${FSDP_MPIEXEC:?}" "${FSDP_PYTHON:?}"
here=$FSDP_SOURCE/tests/cluster
export FSDP_CPU_FLOPS=1e11 # saves measuring at each start of a program
export FSDP_SITE=''           # no site file of this machine

fail() {
    echo "FAILED: $*"
    exit 1
}
skip() {
    echo "SKIPPED: $*"
    exit 77
}

# The folder is below /tmp because the path of a socket may have at most 108 bytes.
# It is open to all because munged requires it.
if [[ ${TMPDIR:-} == /dev/* ]]; then unset TMPDIR; fi # which containers have anyway
work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-test.XXXXXX")
chmod 755 "$work"
cleanup=()
at_exit() {
    local command
    for command in "${cleanup[@]}"; do $command || true; done
    rm -rf "$work"
}
trap at_exit EXIT

# Settings of the tiny run that the tests share, as variables of the job scripts.
small_run() {
    export FSDP_BIN DATA_DIR=$FSDP_SOURCE/data/shakespeare OUT_DIR=$work/runs DEVICE=cpu PRECISION=float32
    export NUM_LAYERS=2 NUM_HEADS=2 EMBED_SIZE=32 SEQ_LEN=32 BATCH_SIZE=2 SAVE_INTERVAL_MINUTES='' TOTAL_BATCH_SIZE=''
}

# wait_for SECONDS COMMAND...: repeats COMMAND until it succeeds; fails after SECONDS.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

# has_steps RUN N: true if the run has logged N steps or more.
has_steps() {
    local steps=0
    if [[ -e $work/runs/$1/metrics.jsonl ]]; then steps=$(grep -c '"loss"' "$work/runs/$1/metrics.jsonl" || true); fi
    ((steps >= $2))
}

# same_losses RUN RUN [ARGUMENTS of same_losses.py]: fails if the losses differ
same_losses() {
    "$FSDP_PYTHON" "$here/same_losses.py" "$work/runs/$1/metrics.jsonl" "$work/runs/$2/metrics.jsonl" "${@:3}" ||
        fail "runs $1 and $2 differ"
}

# load_programs: sets FSDP_BIN to a folder of the programs in which those with LibTorch start by fork() from a process that has
# it loaded, as in tests/cli (loaded_programs.cpp): in that process's network, and under its host name. With FSDP_ALL=1 they
# are the programs themselves. A script with an environment of its own needs FSDP_LOADED_PROGRAMS, too.
load_programs() {
    [[ -z ${FSDP_ALL:-} && -x ${FSDP_LOADED:-}/loaded_programs ]] || return 0
    export FSDP_LOADED_PROGRAMS=$work/loaded.socket
    OMP_NUM_THREADS=1 "$FSDP_PYTHON" -c 'import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + ".part")
listener.listen(100)
os.rename(sys.argv[1] + ".part", sys.argv[1])
os.dup2(listener.fileno(), 0)
os.execv(sys.argv[2], sys.argv[2:])' "$FSDP_LOADED_PROGRAMS" "$FSDP_LOADED/loaded_programs" &
    cleanup+=("kill $!")
    wait_for 30 test -S "$FSDP_LOADED_PROGRAMS" || fail "the process with LibTorch did not start"
    mkdir "$work/programs"
    ln -s "$FSDP_BIN"/* "$work/programs/"
    ln -sf "$FSDP_LOADED"/loaded/fsdp-* "$work/programs/"
    FSDP_BIN=$work/programs
}

# start_slurm: starts a real, small Slurm that lives until the test ends; skips the test if Slurm is not installed.
start_slurm() {
    local tool started
    PATH=$PATH:/usr/sbin:/sbin
    for tool in slurmctld slurmd munged sbatch srun scontrol; do
        command -v "$tool" >/dev/null || skip "no $tool: apt-get install -y slurm-wlm munge"
    done
    export SLURM_TOY_DIR=$work/slurm
    # Short intervals restart a requeued job without waiting for the next minute. MPICH names its shared memory after job and
    # step, so two tests that run a Slurm each at the same time must not use the same job ids.
    export SLURM_TOY_EXTRA="SchedulerParameters=sched_interval=2,bf_interval=2
FirstJobId=$((1 + RANDOM * 1000 + RANDOM % 1000))"
    cleanup+=("$here/slurm-down --purge")
    started=$("$here/slurm-up" 2>"$work/slurm-up.log") || skip "Slurm cannot run here: $(tail -n 1 "$work/slurm-up.log")"
    eval "$started"
}
state() { scontrol show job "$1" | sed -nE 's/.*JobState=([A-Z]+).*/\1/p'; }
# A look starts two programs, which take the time of the jobs that are waited for.
ended() { sleep 0.2; [[ $(state "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)$ ]]; }
