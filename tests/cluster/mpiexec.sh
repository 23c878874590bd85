#!/usr/bin/env bash
# The launcher that is built and packed with the programs. In shells that say they are in a job of Slurm where srun starts
# nothing: ranks start on this node without it, or what to do is said at once. A rank that was killed: told in our words.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[[ $("$FSDP_MPIEXEC" --version 2>&1 || true) == *HYDRA* ]] || skip "this MPI's mpiexec is not hydra's"
root=$FSDP_SOURCE
source "$FSDP_SOURCE/scripts/packing/mpiexec.sh"
write_mpiexec "$work/with space/mpiexec" "$FSDP_MPIEXEC"
mpiexec="$work/with space/mpiexec"

mkdir -p "$work/tools" "$work/fails" "$work/answers"
for tool in sh sed tr cut uname dirname readlink timeout echo hostname; do ln -s "$(type -P "$tool")" "$work/tools/$tool"; done
printf '#!/bin/sh\nexit 1\n' >"$work/fails/scontrol"
printf '#!/bin/sh\nexit 0\n' >"$work/answers/scontrol"
printf '#!/bin/sh\necho "srun $*" >&2\nexit 7\n' >"$work/fails/srun"
cp "$work/fails/srun" "$work/answers/srun"
chmod +x "$work"/{fails,answers}/*

node=$(uname -n)
job() { # PATH NODES [VARIABLE=VALUE...] COMMAND...
    local path=$1 nodes=$2
    shift 2
    timeout 60 env -i PATH="$path" SLURM_JOB_ID=5 SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=2 SLURM_JOB_NODELIST="$nodes" "$@" </dev/null 2>&1
}
expect() { # CODE WORDS COMMAND...
    local code=$1 words=$2 got=0 output
    shift 2
    output=$("$@") || got=$?
    [[ $got == "$code" && $output == *"$words"* ]] || fail "'$*' gave $got, expected $code and '$words': $output"
}
two=$'two\ntwo'

expect 0 "there is no srun here" job "$work/tools" "$node" "$mpiexec" -n 2 echo two
expect 0 "$two" job "$work/tools" "$node" "$mpiexec" -n 2 echo two
expect 0 "no controller of Slurm answers for job 5" job "$work/fails:$work/tools" "$node" "$mpiexec" -n 2 echo two
expect 0 "$two" job "$work/fails:$work/tools" n1 SLURMD_NODENAME=n1 "$mpiexec" -n 2 echo two # a container's name is another
expect 0 "$two" job "$work/tools" "n[1-2]" "$mpiexec" -hosts localhost:2 -n 2 echo two
printf "# this one\n%s:2\n" "$node" >"$work/hosts"
expect 0 "$two" job "$work/tools" "n[1-2]" "$mpiexec" -f "$work/hosts" -n 2 echo two
expect 1 "ranks on n[1-2]" job "$work/tools" "n[1-2]" "$mpiexec" -n 2 echo two
expect 1 "-launcher ssh" job "$work/fails:$work/tools" "$node,other" "$mpiexec" -n 2 echo two
expect 1 "ranks on other" job "$work/tools" "$node" "$mpiexec" -hosts "$node,other" -n 2 echo two
# What says itself how to start is not asked, and an srun that works is used.
expect 0 "$two" job "$work/tools" n1,n2 "$mpiexec" -launcher fork -hosts localhost -n 2 echo two
expect 0 "HYDRA" job "$work/tools" n1,n2 "$mpiexec" --version
if started=$(job "$work/answers:$work/tools" "$node" HYDRA_LAUNCHER_EXEC="$work/answers/srun" timeout 5 "$mpiexec" -n 2 echo two); then
    fail "srun was not used: $started"
fi
[[ $started == *"srun "* ]] || fail "srun was not used: $started"
[[ $started != *"without it"* ]] || fail "srun could be used: $started"

# --- otherwise it is hydra's: stdin, exit codes, signals -------------------------------------------------------------
[[ $(echo words | "$mpiexec" -n 1 cat) == words ]] || fail "stdin does not reach the ranks"
expect 4 '' "$mpiexec" -n 2 sh -c 'exit 4'
cat >"$work/hydra" <<'SH'
#!/bin/sh
case $1 in
    --version) echo HYDRA ;;
    wait) trap 'echo got TERM; exit 85' TERM; trap 'echo got INT; exit 86' INT; echo ready; while :; do sleep 0.05; done ;;
    *) exit "$1" ;;
esac
SH
chmod +x "$work/hydra"
write_mpiexec "$work/ours" hydra # the name of a file beside it, as in the tarball
killed() { "$work/ours" "$@" 2>&1 </dev/null; }
expect 9 "a rank was killed from outside (signal 9)" killed 9
expect 139 "ended by signal 11" killed 139
for code in 0 1 2 4 6 7 85 255; do
    expect "$code" '' killed "$code"
    [[ -z $(killed "$code" || true) ]] || fail "$code is no rank that was killed"
done
if env --default-signal=INT true 2>/dev/null; then
    for signal in TERM:85 INT:86; do
        : >"$work/said"
        # A terminal's SIGINT comes to both; here there is none. A shell starts what runs beside it with SIGINT ignored.
        env --default-signal=INT "$work/ours" wait >"$work/said" 2>&1 </dev/null &
        until grep -q ready "$work/said"; do sleep 0.05; done
        kill -"${signal%:*}" $!
        code=0
        wait $! || code=$?
        [[ $code == "${signal#*:}" && $(<"$work/said") == *"got ${signal%:*}"* ]] || fail "$signal gave $code: $(<"$work/said")"
    done
fi
echo "ranks start, or the cure is told"
