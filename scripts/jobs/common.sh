# Shared by the job scripts of all schedulers, which source it through slurm.sh or pbs.sh. They set job_name (for
# messages) and FSDP_HOME (the folder that holds scripts/jobs/).
# shellcheck shell=bash disable=SC2154

say() { printf '%s %s: %s\n' "$(date +%FT%T)" "$job_name" "$*"; }
die() { say "$1"; exit "${2:-1}"; }

# find_programs PROGRAM: sets FSDP_BIN, unless it is set, to the folder of the programs.
find_programs() {
    if [[ -z ${FSDP_BIN:-} ]]; then
        # The last but one: what was installed below PREFIX/share/fsdp has its programs in PREFIX/bin.
        for FSDP_BIN in build/bin bin "$FSDP_HOME"/{build/bin,bin,../../bin} \
            "$(dirname "$(command -v "$1" || echo none/x)")"; do
            if [[ -x $FSDP_BIN/$1 ]]; then break; fi
        done
    fi
    [[ -x $FSDP_BIN/$1 ]] || die "no $1 in build/bin or bin below $PWD or $FSDP_HOME, nor on PATH: set FSDP_BIN" 2
    FSDP_BIN=$(cd "$FSDP_BIN" && pwd)
}

# option --name VALUE: adds both to options, unless VALUE is empty or the option is among the words of given, which win.
options=()
given=' '
arguments_given() { given=" $* "; }
option() {
    if [[ -n $2 && $given != *" $1 "* && $given != *" $1="* ]]; then options+=("$1" "$2"); fi
}

# --- a run that goes on from its newest checkpoint: run_dir is its folder ---------------------------------------------
newest_step() { # 0 where there is no checkpoint
    local name
    name=$(readlink "$run_dir/checkpoints/latest" || true)
    name=${name%/}
    name=${name##*step-}
    echo $((10#${name:-0}))
}

# Adds --restart-checkpoint-file where there is a checkpoint, and sets step. The crash-loop guard: $run_dir/starts holds
# the step of the last start and how many starts in a row were at it.
begin_run() {
    local last_step=-1 idle=0
    mkdir -p "$run_dir" || die "OUT_DIR=$OUT_DIR is not writable"
    if [[ -e $run_dir/checkpoints/latest ]]; then option --restart-checkpoint-file latest; fi
    step=$(newest_step)
    if [[ -s $run_dir/starts ]]; then read -r last_step idle <"$run_dir/starts"; fi
    idle=$((step == last_step ? idle + 1 : 0))
    echo "$step $idle" >"$run_dir/starts"
}

# end_run CODE: returns, with step set, when fsdp-finetune stopped early with a good checkpoint and is to be started
# again; ends the script otherwise. With 0 it calls run_finished first, where the script has one.
end_run() {
    local last_step idle
    if (($1 != 85)); then
        if (($1 == 0)); then
            rm -f "$run_dir/starts"
            if declare -F run_finished >/dev/null; then run_finished; fi
        fi
        die "fsdp-finetune ended with code $1" "$1"
    fi
    step=$(newest_step)
    read -r last_step idle <"$run_dir/starts"
    if ((step == last_step && idle >= ${MAX_IDLE_RESTARTS:-2})); then
        die "step $step again after $((idle + 1)) starts: not started again, since the run makes no progress" 1
    fi
}
