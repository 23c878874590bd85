#!/usr/bin/env bash
# Checks that every script answers --help itself and refuses an unknown option at once without doing anything. Runs a copy
# of the scripts with stand-ins for all programs that install, build, test, submit or train.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-help.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{clone/build/bin,tools,home}
cp -R scripts slurm pbs VERSION "$work/clone/"
for tool in apt-get sudo pip cmake ctest ninja mmdebstrap clang-format clang-tidy patchelf sbatch srun qsub qstat mpiexec flock; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/did"\nexit 1\n' "$tool" "$work" >"$work/tools/$tool"
done
printf '#!/bin/sh\nexit 1\n' >"$work/tools/scontrol" # the job scripts may ask it for their own path
# The job scripts pass options that they do not know to the programs, which must refuse them before a job starts.
for program in fsdp-finetune fsdp-download fsdp-bf16check; do
    printf '#!/bin/sh\ncase "$*" in *--no-such-option*) exit 2 ;; esac\necho "%s $*" >>"%s/did"\n' "$program" "$work" \
        >"$work/clone/build/bin/$program"
done
chmod +x "$work"/tools/* "$work"/clone/build/bin/*

bad=0
complain() {
    echo "$*"
    bad=1
}
files() { (cd "$work" && find . ! -path './clone/*/__pycache__*' ! -name did | sort); }
before=$(files)
count=0
# answers CODE SCRIPT OPTION: runs the script and checks its exit code
answers() {
    local code=0 output
    output=$(cd "$work/clone" && env -i PATH="$work/tools:$PATH" HOME="$work/home" PYTHONDONTWRITEBYTECODE=1 timeout 20 \
        "${@:2}" </dev/null 2>&1) || code=$?
    count=$((count + 1))
    if ((code != $1)); then complain "${*:2} ended with $code, expected $1: $output"; fi
    [[ -n $output || $1 != 0 ]] || complain "${*:2} said nothing"
    if [[ -e $work/did ]]; then
        complain "${*:2} did: $(<"$work/did")"
        rm "$work/did"
    fi
}
for script in scripts/* slurm/* pbs/*; do
    [[ -f $script && $script != scripts/common.sh ]] || continue # it is only sourced
    answers 0 "$script" --help
    answers 0 "$script" -h
    answers 2 "$script" --no-such-option
done
answers 2 scripts/cross aarch64 --no-such-option
answers 2 scripts/cross aarch64 --test --no-such-option
answers 2 scripts/test --quick no-such-word
answers 2 scripts/test -R
answers 2 scripts/format --check --no-such-option
answers 2 bash slurm/chess_download.sh --check --no-such-option
[[ $(files) == "$before" ]] || complain "something was written: $(diff <(echo "$before") <(files))"
((count > 70)) || complain "only $count tries: is this the source tree?"
((bad)) || echo "$count tries, nothing done"
exit "$bad"
