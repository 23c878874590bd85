# Shared by the job scripts of all schedulers, which source this file through slurm.sh or pbs.sh after setting job_name
# (for messages) and FSDP_HOME (the folder that holds scripts/jobs/).
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source=site.sh
source "$FSDP_HOME/scripts/jobs/site.sh"
read_site || exit 2

say() { printf '%s %s: %s\n' "$(date +%FT%T)" "$job_name" "$*"; }
die() { say "$1"; exit "${2:-1}"; }

# find_programs PROGRAM: sets FSDP_BIN, unless it is set, to the folder of the programs. With CONTAINER, that are scripts
# which start them in the container.
find_programs() {
    if [[ -n ${CONTAINER:-} ]]; then
        [[ -e $CONTAINER ]] || die "CONTAINER=$CONTAINER: no such image" 4
        CONTAINER=$(realpath -s "$CONTAINER")
        CONTAINER_BIND="$FSDP_HOME:${OUT_DIR:-runs}:${STAGE:-}:${CONTAINER_BIND:-}"
        export CONTAINER CONTAINER_BIND
        FSDP_BIN=$FSDP_HOME/scripts/jobs/container
    fi
    if [[ -z ${FSDP_BIN:-} ]]; then
        # The last but one: programs installed with PREFIX/share/fsdp are in PREFIX/bin.
        for FSDP_BIN in build/bin bin "$FSDP_HOME"/{build/bin,bin,../../bin} \
            "$(dirname "$(command -v "$1" || echo none/x)")"; do
            if [[ -x $FSDP_BIN/$1 ]]; then break; fi
        done
    fi
    [[ -x $FSDP_BIN/$1 ]] || die "no $1 in build/bin or bin below $PWD or $FSDP_HOME, nor on PATH: set FSDP_BIN" 2
    FSDP_BIN=$(cd "$FSDP_BIN" && pwd)
}

# read_seconds [D-]H:M:S: sets seconds; fails for another form.
read_seconds() {
    [[ $1 =~ ^(([0-9]+)-)?([0-9]+):([0-9]+):([0-9]+)$ ]] || return 1
    seconds=$((10#${BASH_REMATCH[2]:-0} * 86400 + 10#${BASH_REMATCH[3]} * 3600 + 10#${BASH_REMATCH[4]} * 60 + 10#${BASH_REMATCH[5]}))
}

# split_words TEXT: fills words_of with the words of TEXT. Quotes and backslashes work as in the shell, and "" is an empty
# word; nothing is expanded or run.
split_words() {
    local text
    text=$(xargs -r printf '%s\n' <<<"$1" 2>/dev/null && echo .) || die "a quote in '$1' is not closed" 2
    mapfile -t words_of <<<"$text"
    unset 'words_of[-1]'
}
# join_words WORD...: prints the words so that split_words restores them.
join_words() {
    local word text=''
    for word; do
        if [[ $word != *[!A-Za-z0-9_/.,:=@%+-]* && -n $word ]]; then text+=" $word"; else text+=" '${word//\'/\'\\\'\'}'"; fi
    done
    echo "${text# }"
}

# A name that leads out of OUT_DIR would write the run, and move an older one, to another place.
check_run_name() {
    case /$RUN_NAME/ in
        //* | */../* | */./*) die "RUN_NAME=$RUN_NAME leaves OUT_DIR=$OUT_DIR: give a name below it" 2 ;;
    esac
    check_name_length RUN_NAME "$RUN_NAME"
}
# check_name_length VARIABLE PATH: ends the script if a folder of the path has a longer name than file systems take.
check_name_length() {
    local part LC_ALL=C # counts bytes
    while IFS= read -r -d / part; do
        ((${#part} <= 255)) || die "$1: a folder would have a name of ${#part} bytes, and 255 is the most: ${part:0:80}..." 2
    done <<<"$2/"
}

# option --name VALUE: adds both to options, unless VALUE is empty or the words of given hold the option, which then wins.
options=()
final=() # options that win over the arguments, too
given=' '
arguments_given() { given=" $* "; }
option() {
    if [[ -n $2 && $given != *" $1 "* && $given != *" $1="* ]]; then options+=("$1" "$2"); fi
}

# Sets variables to an option for each exported FSDP_OPT_NAME that is not empty; the options count as given. The program
# knows the names, so that its new options need no line here. Call after arguments_given.
variables=()
option_variables() {
    local variable name
    variables=()
    for variable in $(compgen -e FSDP_OPT_); do
        name=${variable#FSDP_OPT_}
        name=--${name,,}
        name=${name//_/-}
        case $name in
            --run-name | --out-dir | --config) die "$variable: set RUN_NAME, OUT_DIR or PLAN instead" 2 ;;
        esac
        if [[ -n ${!variable} ]]; then variables+=("$name=${!variable}"); fi
    done
    given=" ${variables[*]}$given"
}

# --- a run that continues from its newest checkpoint: run_dir is its folder -------------------------------------------
# newest_checkpoint [FOLDER of a run, by default run_dir]: prints the name of the checkpoint that --restart-checkpoint-file
# latest takes: the link's or, where latest is no link, the step-N with the highest N. Prints nothing if there is none.
newest_checkpoint() {
    local folder=${1:-$run_dir} manifest name=''
    if [[ -L $folder/checkpoints/latest && -d $folder/checkpoints/latest/ ]]; then
        name=$(readlink "$folder/checkpoints/latest")
    else
        for manifest in "$folder"/checkpoints/step-*/run.json; do
            if [[ -e $manifest ]]; then name=${manifest%/run.json}; fi
        done
    fi
    name=${name%/}
    echo "${name##*/}"
}
newest_step() { # prints 0 if there is no checkpoint; of a sweep (--sweep), the sum over its runs
    local folder name steps=0
    local -a folders=("$run_dir")
    if [[ -e $run_dir/sweep.json ]]; then folders=("$run_dir"/*/); fi
    for folder in "${folders[@]}"; do
        name=$(newest_checkpoint "$folder")
        name=${name##*step-}
        steps=$((steps + 10#${name:-0}))
    done
    echo "$steps"
}

# go_on_from_own ARGUMENTS of fsdp-finetune: a run that was given the checkpoint to start from, under whatever name of the
# option, starts there once. Later starts go on from its own newest checkpoint: a job that is started again has the same
# arguments. $run_dir/started-from names that checkpoint; it is as old as the start.
go_on_from_own() {
    local job_config='' given_checkpoint newest started=$run_dir/started-from
    read_config "$@" 2>/dev/null || return 0 # the program will say why
    given_checkpoint=$(configured restart-checkpoint-file)
    if [[ -z $given_checkpoint || $given_checkpoint == latest ]]; then return; fi
    newest=$(newest_checkpoint)
    if [[ -n $newest && $run_dir/checkpoints/$newest -nt $started && $(cat "$started" 2>/dev/null) == "$given_checkpoint" ]]; then
        final+=(--restart-checkpoint-file latest)
        say "goes on from its own newest checkpoint; it has started from $given_checkpoint before (to start there again, remove \
$started)"
    else
        echo "$given_checkpoint" >"$started"
    fi
}

# begin_run ARGUMENTS of fsdp-finetune: adds --restart-checkpoint-file if there is a checkpoint, and sets step. Guards against
# crash loops: $run_dir/starts holds the step of the last start and the number of starts in a row at this step.
begin_run() {
    local last_step=-1 idle=0
    local problem
    problem=$(mkdir -p "$run_dir" 2>&1) || die "OUT_DIR=$OUT_DIR: ${problem#mkdir: }"
    if [[ -n $(newest_checkpoint) ]]; then option --restart-checkpoint-file latest; fi
    go_on_from_own "$@"
    step=$(newest_step)
    starts_before=''
    if [[ -s $run_dir/starts ]]; then
        starts_before=$(<"$run_dir/starts")
        read -r last_step idle <<<"$starts_before"
    fi
    idle=$((step == last_step ? idle + 1 : 0))
    starts_now="$step $idle"
    echo "$starts_now" >"$run_dir/starts"
    signalled='' # this shell survives a signal to the whole job, to report what happens next
    trap 'signalled=SIGTERM' TERM
    trap 'signalled=SIGUSR1' USR1
}
# Restores $run_dir/starts after a start that was refused or called off: it says nothing about progress.
forget_start() {
    [[ $(cat "$run_dir/starts" 2>/dev/null) == "$starts_now" ]] || return 0 # another job has started the run since
    if [[ -n $starts_before ]]; then echo "$starts_before" >"$run_dir/starts"; else rm -f "$run_dir/starts"; fi
}

# time_left SECONDS: sets left to words, such as "57 minutes".
time_left() {
    local unit=second
    left=$1
    if ((left >= 90)); then left=$(((left + 30) / 60)) unit=minute; fi
    left="$left $unit$( ((left == 1)) || echo s)"
}

# Prints advice for exit code $1, and how to continue if there is a checkpoint.
next_command() {
    case $1 in
        9 | 137) # hydra's and srun's exit codes
            echo ": a rank was killed by SIGKILL, most often since the node's memory was full (its system log says so; ask for a \
larger node or a smaller batch)" ;;
    esac
    if [[ -n $(newest_checkpoint) ]]; then echo "; submit again with RUN_NAME=$RUN_NAME to go on from step $(newest_step)"; fi
}

# run_ranks COMMAND...: runs the ranks of a job, and sets code to its exit code. Rank 0 writes that into a file, too, which
# counts where the launcher returns another one: mpirun of Open MPI returns 1 for each job that got a signal, and mpiexec
# of MPICH 4.0 has returned 0.
run_ranks() {
    local told=''
    code=0
    FSDP_EXIT_FILE=$(realpath -s "$run_dir")/.exit-code.$$
    export FSDP_EXIT_FILE
    rm -f "$FSDP_EXIT_FILE"
    "$@" || code=$?
    if read -r told 2>/dev/null <"$FSDP_EXIT_FILE" && [[ $told =~ ^[1-9][0-9]{0,2}$ ]]; then code=$told; fi
    rm -f "$FSDP_EXIT_FILE"
    unset FSDP_EXIT_FILE
}

# end_run CODE: returns, with step set, if fsdp-finetune stopped early with a good checkpoint and is to be started again;
# ends the script otherwise. With code 0 it first calls run_finished, if the script defines it.
# Needs ends_if_called_off, which ends the script if the job was cancelled.
end_run() {
    local last_step idle
    case $1 in
        85) ;;
        0)
            rm -f "$run_dir/starts"
            if declare -F run_finished >/dev/null; then run_finished; fi
            die "fsdp-finetune ended with code 0" 0 ;;
        2 | 4) # wrong options or input, or another job has the run: this start does not count
            forget_start
            die "fsdp-finetune ended with code $1" "$1" ;;
        *) die "fsdp-finetune ended with code $1$(next_command "$1" | tr -d '\n')" "$1" ;;
    esac
    step=$(newest_step)
    ends_if_called_off
    read -r last_step idle <"$run_dir/starts"
    if ((step == last_step && idle >= ${MAX_IDLE_RESTARTS:-2})); then
        die "step $step again after $((idle + 1)) starts: not started again, since the run makes no progress" 1
    fi
    if declare -F chain_goes_on >/dev/null; then chain_goes_on; fi
}

# run_lessons ARGUMENTS of scripts/lessons: runs it on the ranks of this job and ends the script. Call after choose_launcher.
run_lessons() {
    local code=0
    LAUNCHER=$(join_words "${launch[@]}")
    export FSDP_BIN LAUNCHER RANKS RANKS_PER_NODE
    say "$RANKS ranks, $RANKS_PER_NODE per node, start by ${launch[*]}"
    "$FSDP_HOME/scripts/lessons" "$@" || code=$?
    if ((code == 85)); then die "stopped early: submit again with the same OUT_DIR to go on" 85; fi
    die "lessons ended with code $code" "$code"
}

# check_gpu ARGUMENTS of scripts/gpu-check: runs it as one process on this node and ends the script.
check_gpu() {
    local code=0
    local -a stages
    read -ra stages <<<"${STAGES:-}"
    arguments_given "$@"
    option --out "${OUT_DIR:-runs/gpu-check}"
    option --device "${DEVICE-}"
    export FSDP_BIN
    say "${stages[*]:-all stages} with ${FSDP_PYTHON:-the python3 of the project or on PATH}, programs of $FSDP_BIN"
    "$FSDP_HOME/scripts/gpu-check" "${stages[@]}" "${options[@]}" "$@" || code=$?
    die "gpu-check ended with code $code" "$code"
}
